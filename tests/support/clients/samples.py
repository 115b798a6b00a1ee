"""A dialect's other inputs besides the request, for tests that do not depend on them."""

from dataclasses import replace
from random import Random

from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer

from app.config.schema import parse
from app.dialects.base import ParseContext, Request, ServingContext
from app.engine.model import Model
from deployments.engine.logits import registry as registration

CONFIG = parse(
    {
        "endpoints": {"chat": {"tasks": ["chat", "completions", "responses"], "traffic": {"blue": 100}}},
        "deployments": {"blue": {"url": "http://blue", "model": "m"}},
    }
)
CONTEXT = ParseContext(CONFIG, Random(0))
SERVED = ServingContext("blue", CONFIG.deployments["blue"])
REQUEST = Request("POST", "/x")

EOS = "<|end|>"

_TEXTS = [
    "hello world, hello there",
    "日本語のテキスト 中文",
    "née naïve café",
    "😀😃👩‍👩‍👧‍👦 🇫🇷",
    "e\u0301 o\u0308",
    "stop here, stop there",
]


def tokenizer() -> Tokenizer:
    """A byte-level BPE trained on short mixed texts: its tokens split characters and join words."""
    made = Tokenizer(BPE())
    made.pre_tokenizer = ByteLevel(add_prefix_space=False)
    made.decoder = ByteLevelDecoder()
    trainer = BpeTrainer(
        vocab_size=330, initial_alphabet=ByteLevel.alphabet(), special_tokens=[EOS], show_progress=False
    )
    made.train_from_iterator(_TEXTS * 3, trainer)
    made.add_special_tokens([AddedToken(EOS, special=True)])
    return made


MODEL = Model.build(tokenizer().to_str(), eos_ids=[0], max_len=100)
"""Its EOS has the id 0; the context is 100 tokens."""

PROCESSORS = frozenset(key for keys in registration.PROCESSORS.values() for key in keys)
"""The `vllm_xargs` that a model application's engine supports."""

EXTENDED = replace(MODEL, is_extended=True, processors=PROCESSORS)
"""The same, as in a model application."""
