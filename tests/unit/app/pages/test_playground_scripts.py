"""The playground's scripts that need no browser, in Node: from the events of an answer to Markdown and programs."""

import ast
import json
import re
import shlex
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.tree import SyntaxTreeNode

from tests.conftest import NIGHTLY
from tests.support.clients.page_modules import PageError, call, call_all

# One run of Node takes many cases, because starting it takes longer than running them.
batches = settings(
    max_examples=20 if NIGHTLY else 2,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

WORDS = st.lists(st.sampled_from(["a", "b", "c", " ", "\n", ",", "日本", "é", "😀"]), max_size=30).map("".join)
HOSTILE = [
    "",
    "'",
    '"',
    "'''\"\"\"",
    "\\",
    "\\\\'",
    "it's $(rm -rf /) `id` ${HOME} $HOME !! %s {x} {{}}",
    "line\nline\r\ntab\tnull\x00bell\x07escape\x1b[31m",
    "😀 日本 עברית \u202eevil\u202c \u2028\u2029 \ufeff \U000e0001",
    "<img src=x onerror=alert(1)></script>",
    "EOF\nEOF\n'\n--data-raw @/etc/passwd",
    "-n",
    "\\u0041\\x41\\N{BULLET}\\",
    "\\\n\\",
]
TEXT = st.text(st.characters(exclude_categories=["Cs", "Cn"])) | st.sampled_from(HOSTILE)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.floats(-(2.0**53), 2.0**53) | TEXT,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(TEXT.filter(lambda text: text != "__proto__"), inner, max_size=4)
    ),
    max_leaves=12,
)


# --- comparison.js ---


def common(a: list[str], b: list[str]) -> int:
    """The length of the longest common subsequence, by the textbook algorithm."""
    row = [0] * (len(b) + 1)
    for left in a:
        before = 0
        for index, right in enumerate(b, 1):
            before, row[index] = row[index], before + 1 if left == right else max(row[index], row[index - 1])
    return row[-1]


@batches
@given(st.lists(st.tuples(WORDS, WORDS), min_size=1, max_size=100))
def test_a_difference_has_both_texts_and_the_fewest_changes(pairs: list[tuple[str, str]]) -> None:
    differences = call_all([("diff", pair) for pair in pairs])
    words = call_all([("words", (text,)) for pair in pairs for text in pair])
    for (before, after), pieces, a, b in zip(pairs, differences, words[::2], words[1::2], strict=True):
        assert "".join(piece["text"] for piece in pieces if piece["kind"] != "added") == before == "".join(a)
        assert "".join(piece["text"] for piece in pieces if piece["kind"] != "removed") == after == "".join(b)
        assert all(piece["text"] for piece in pieces)
        kinds = [piece["kind"] for piece in pieces]
        assert not {("same", "same"), ("added", "removed")} & set(pairwise(kinds))
    same = [[piece["text"] for piece in pieces if piece["kind"] == "same"] for pieces in differences]
    kept = iter(call_all([("words", (text,)) for texts in same for text in texts]))
    for texts, a, b in zip(same, words[::2], words[1::2], strict=True):
        assert sum(len(next(kept)) for _ in texts) == common(a, b)


def test_words_are_the_units_even_without_spaces() -> None:
    assert call("words", "It's 3.5 naïve_x, 日本語だ!") == [
        "It", "'", "s", " ", "3", ".", "5", " ", "naïve_x", ",", " ", "日", "本", "語", "だ", "!",
    ]  # fmt: skip
    assert call("diff", "the quick brown fox", "the slow brown fox") == [
        {"kind": "same", "text": "the "},
        {"kind": "removed", "text": "quick"},
        {"kind": "added", "text": "slow"},
        {"kind": "same", "text": " brown fox"},
    ]


def test_likeness_is_the_share_of_words_that_stay() -> None:
    cases = [("", ""), ("a b", "a b"), ("a b", "a c"), ("a", "b"), ("a", "")]
    assert call_all([("likeness", case) for case in cases]) == [1, 1, 0.5, 0, 0]


def test_long_texts_without_anything_in_common_are_compared_quickly() -> None:
    before, after = (" ".join(f"{letter}{n}" for n in range(20_000)) for letter in "ab")
    pieces = call("diff", f"same {before} same", f"same {after} same")
    assert [piece["kind"] for piece in pieces] == ["same", "removed", "added", "same"]
    assert pieces[1]["text"] == before


# --- events.js ---


EVENTS = st.lists(TEXT, min_size=1, max_size=5)
CUTS = st.lists(st.integers(0, 400), max_size=6)


def sent(data: str, id: str = "", type_: str = "message") -> dict[str, str]:
    return {"type": type_, "data": data, "id": id}


@batches
@given(st.lists(st.tuples(EVENTS, st.sampled_from(["\n", "\r\n", "\r"]), CUTS), min_size=1, max_size=30))
def test_events_do_not_depend_on_how_the_stream_is_split(cases: list[tuple[list[str], str, list[int]]]) -> None:
    calls, wanted = [], []
    for texts, end, cuts in cases:
        lines = [[part.replace("\r", " ") for part in text.replace("\r\n", "\n").split("\n")] for text in texts]
        lines = [[line[1:] if line.startswith(" ") else line for line in event] for event in lines]
        whole = f": hello{end}{end}"
        for number, event in enumerate(lines):
            whole += f"id: {number}{end}" + "".join(f"data: {line}{end}" for line in event) + end
        places = sorted({min(cut, len(whole)) for cut in cuts})
        pieces = [whole[a:b] for a, b in zip([0, *places], [*places, len(whole)], strict=True)]
        # The end of the last line is certain once something follows it.
        calls.append(("events", ([*pieces, ": end"],)))
        wanted.append([[sent("\n".join(text), str(number)) for number, text in enumerate(lines)], str(len(lines) - 1)])
    assert call_all(calls) == wanted


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_a_stream_may_be_split_anywhere_even_within_a_line_ending(end: str) -> None:
    whole = end.join(["data: a", "data: b", "", ": c", "data: d", "", ": e"])
    calls = [("events", ([whole[:cut], whole[cut:]],)) for cut in range(len(whole) + 1)]
    calls.append(("events", (list(whole),)))
    assert call_all(calls) == [[[sent("a\nb"), sent("d")], ""]] * len(calls)


def test_events_without_a_space_or_after_a_byte_order_mark_are_read_and_unfinished_ones_are_not() -> None:
    events, _ = call("events", ["\ufeffdata:a\n\ndata\n\nevent: x\n\ndata:  b\n\ndata: c"])
    assert events == [sent("a"), sent(""), sent(" b")]


def test_an_event_has_its_type_and_the_last_id_that_came_even_without_data() -> None:
    events = call("events", ["id: 1\nevent: plan\ndata: a\n\ndata: b\n\nid: 2\n\nid: 3\n"])
    assert events == [[sent("a", "1", "plan"), sent("b", "1")], "2"]


# --- answer.js ---


def chunk(content: str = "", **fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": content}, **fields}]}


def test_an_answers_times_and_tokens_are_those_of_its_stream() -> None:
    usage = {"prompt_tokens": 9, "completion_tokens": 5}
    events = [(150, chunk()), (200, chunk("Hel")), (300, chunk("lo")), (1200, chunk(" you", finish_reason="stop"))]
    answer = call("answer", 100, [*events, (1300, {"choices": [], "usage": usage}), (1300, "[DONE]")])
    assert (answer["text"], answer["finish"], answer["usage"], answer["failure"]) == ("Hello you", "stop", usage, None)
    assert (answer["firstTokenMs"], answer["tokens"], answer["tokensPerSecond"]) == (100, 5, 4)
    assert answer["longestPauseMs"] == 900
    assert not answer["hasProbabilities"]


def test_what_the_network_measured_replaces_what_the_page_saw() -> None:
    events = [(700, chunk("Hel")), (705, chunk("lo", finish_reason="stop"))]
    seen = call("answer", 700, events)
    measured = call("answer", 700, events, {"firstByteMs": 150, "wholeMs": 650})
    assert (seen["firstTokenMs"], seen["tokensPerSecond"]) == (0, 200)
    assert (measured["firstTokenMs"], measured["tokensPerSecond"]) == (150, 2)


def test_without_an_event_there_are_no_times() -> None:
    answer = call("answer", 100, [(200, chunk())])
    assert (answer["firstTokenMs"], answer["tokens"], answer["tokensPerSecond"]) == (None, 0, None)
    assert answer["longestPauseMs"] is None


@pytest.mark.parametrize(
    ("event", "failure"),
    [({"error": {"message": "out of memory"}}, "out of memory"), ("{", "The stream has an event that is not JSON")],
)
def test_a_failure_in_the_stream_keeps_the_text_before_it(event: Any, failure: str) -> None:
    answer = call("answer", 0, [(1, chunk("Half")), (2, event)])
    assert (answer["text"], answer["failure"]) == ("Half", failure)


def test_tokens_of_both_formats_are_pieces_unless_they_split_characters() -> None:
    top = [{"token": "a", "logprob": -0.1}, {"token": "b", "logprob": -2.5}]
    chat = {
        "content": [
            {"token": "a", "logprob": -0.1, "top_logprobs": top},
            {"token": " c", "logprob": -1, "top_logprobs": []},
        ]
    }
    half = {"content": [{"token": "\ufffd", "logprob": -0.5}, {"token": "\ufffd", "logprob": -0.2}]}
    text = {"tokens": ["d"], "token_logprobs": [-0.3], "top_logprobs": [{"d": -0.3, "e": -1.5}]}
    events = [(1, chunk("a c", logprobs=chat)), (2, chunk("😀", logprobs=half))]
    events.append((3, {"choices": [{"index": 0, "text": "d", "logprobs": text}]}))
    answer = call("answer", 0, events)
    assert [(piece["text"], len(piece["tokens"])) for piece in answer["pieces"]] == [
        ("a", 1),
        (" c", 1),
        ("😀", 2),
        ("d", 1),
    ]
    assert answer["pieces"][0]["tokens"][0]["others"] == [{"token": "b", "logprob": -2.5}]
    assert answer["pieces"][3]["tokens"][0] == {
        "token": "d",
        "logprob": -0.3,
        "others": [{"token": "e", "logprob": -1.5}],
    }
    assert answer["hasProbabilities"]


def test_tool_calls_and_reasoning_are_put_together() -> None:
    def tool(**function: str) -> dict[str, Any]:
        return {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "function": function}]}}]}

    thought = {"choices": [{"index": 0, "delta": {"reasoning": "Hm."}}]}
    answer = call("answer", 0, [(1, thought), (2, tool(name="add", arguments='{"a"')), (3, tool(arguments=": 1}"))])
    assert (answer["reasoning"], answer["tools"]) == ("Hm.", [{"name": "add", "arguments": '{"a": 1}'}])


def test_probabilities_in_words() -> None:
    logprobs = [0, -0.0001, -0.01, -0.7, -2.5, -4.8, -9, -20]
    words = ["100 %", "over 99.9 %", "99 %", "50 %", "8.2 %", "0.82 %", "0.01 %", "below 0.01 %"]
    shown = call_all([("percent", (logprob,)) for logprob in logprobs])
    assert shown == [word.replace(" %", "\N{NO-BREAK SPACE}%") for word in words]


def test_norm_and_cosine() -> None:
    calls: list[tuple[str, Any]] = [("norm", ([3, 4],)), ("cosine", ([1, 0], [0, 2])), ("cosine", ([1, 1], [2, 2]))]
    assert call_all(calls) == [5, 0, pytest.approx(1)]
    assert call("cosine", [0, 0], [1, 1]) is None


# --- markdown.js ---

REFERENCE = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])
"""Another implementation, for Python."""

INLINE = st.lists(
    st.sampled_from(
        ["word", "two words", "**b**", "*e*", "***x***", "~~s~~", "`c`", "``c`d``", "\\*", "&amp;", "a_b_c", "\n", " ",
         "  \n", "[l](https://a.example/x)", "[l](javascript:alert)", "[*l*](/keys)", "![i](https://a.example/i.png)",
         "<https://a.example>", "<b>", "</p>", "<script>", "|", "*", "_", "`", "[", "](", "1.", "#"]
    ),
    min_size=1, max_size=8,
).map("".join)  # fmt: skip
LINE = INLINE.map(lambda text: text.replace("\n", " "))


def indented(text: str, first: str) -> str:
    """The text with its first line after `first`, and the others below it."""
    return first + text.replace("\n", "\n" + " " * len(first))


BLOCK = st.recursive(
    st.one_of(
        INLINE,
        st.tuples(st.integers(1, 6), LINE).map(lambda level_and_text: f"{'#' * level_and_text[0]} {level_and_text[1]}"),
        LINE.map(lambda text: f"{text}\n==="),
        st.tuples(st.sampled_from(["", "js", "python x"]), INLINE).map(
            lambda language_and_text: f"```{language_and_text[0]}\n{language_and_text[1]}\n```"
        ),
        INLINE.map(lambda text: f"~~~\n{text}"),
        LINE.map(lambda text: f"    {text}"),
        st.sampled_from(["---", "***"]),
        st.lists(st.tuples(LINE, LINE), min_size=1, max_size=3).map(
            lambda rows: "\n".join(["| a | b |", "|:-:|--:|", *(f"| {a} | {b} |" for a, b in rows)])
        ),
    ),
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(lambda all: "\n".join(indented(block, "- ") for block in all)),
        st.lists(inner, min_size=1, max_size=3).map(lambda all: "\n".join(indented(block, "7. ") for block in all)),
        inner.map(lambda text: "> " + text.replace("\n", "\n> ")),
    ),
    max_leaves=4,
)
NOISE = st.text('ab *_`#>-+.1\n|[]()!~<&\\:"=\t', max_size=60)
DOCUMENT = st.lists(BLOCK, min_size=1, max_size=6).flatmap(
    lambda blocks: st.sampled_from(["\n", "\n\n"]).map(lambda between: between.join(blocks))
)
MARKDOWN = (DOCUMENT | NOISE).filter(lambda text: "]:" not in text)
"""Without definitions of links, which may stand below what refers to them."""

BLANKS_AT_THE_END = re.compile(r">[ \t]{2,}\Z")
"""Of a quote. If it ends in code, the other implementation drops these, which CommonMark keeps."""


def reference(node: SyntaxTreeNode) -> list[Any]:
    """The trees that the page should show for a node of the other implementation."""
    inner = joined([child_text for child in node.children for child_text in reference(child)])
    match node.type:
        case "root" | "inline":
            return inner
        case "paragraph" if node.hidden:
            return inner
        case "text":
            return [node.content]
        case "softbreak":
            return ["\n"]
        case "fence" | "code_block":
            language = (node.info.split() or [""])[0] if node.type == "fence" else ""
            return [tree("pre", {"language": language}, [node.content])]
        case "code_inline":
            return [tree("code", {}, [node.content])]
        case "link":
            return [linked(str(node.attrs["href"]), inner)]
        case "image":
            return [linked(str(node.attrs["src"]), [node.content or "image"])]
    style = str(node.attrs.get("style", "")).removeprefix("text-align:")
    attributes = {"class": style} if style in ("center", "right") else {}
    if "start" in node.attrs:
        attributes["start"] = str(node.attrs["start"])
    return [tree(node.tag, attributes, inner)]


def tree(tag: str, attributes: dict[str, str], children: list[Any]) -> dict[str, Any]:
    return {"tag": tag, "attributes": attributes, "children": children}


def linked(url: str, children: list[Any]) -> dict[str, Any]:
    if not url.startswith(("http://", "https://")):
        return tree("span", {}, children)
    return tree("a", {"href": url, "target": "_blank", "rel": "noopener noreferrer"}, children)


def joined(trees: list[Any]) -> list[Any]:
    """The same with texts side by side as one, and without empty ones, at every depth."""
    made: list[Any] = []
    for tree in trees:
        if isinstance(tree, dict):
            made.append({**tree, "children": joined(tree["children"])})
        elif made and isinstance(made[-1], str):
            made[-1] += tree
        elif tree:
            made.append(tree)
    return made


@batches
@given(st.lists(MARKDOWN.filter(lambda text: not BLANKS_AT_THE_END.search(text)), min_size=50, max_size=200))
def test_markdown_is_read_as_another_implementation_reads_it(texts: list[str]) -> None:
    for text, shown in zip(texts, call_all([("markdown", (text,)) for text in texts]), strict=True):
        assert joined(shown) == reference(SyntaxTreeNode(REFERENCE.parse(text))), text


def test_code_in_a_quote_keeps_the_blanks_at_its_end() -> None:
    code = tree("pre", {"language": ""}, [" "])
    assert joined(call("markdown", "> ~~~\n>  ")) == [tree("blockquote", {}, [code])]


@batches
@given(st.lists(st.tuples(MARKDOWN, CUTS), min_size=50, max_size=200))
def test_markdown_does_not_depend_on_how_the_stream_is_split(cases: list[tuple[str, list[int]]]) -> None:
    calls: list[tuple[str, Any]] = []
    for text, cuts in cases:
        places = sorted({min(cut, len(text)) for cut in cuts})
        calls.append(("grown", ([text[a:b] for a, b in pairwise([0, *places, len(text)])],)))
    wholes = call_all([("markdown", (text,)) for text, _ in cases])
    for (text, _), (grown, _), whole in zip(cases, call_all(calls), wholes, strict=True):
        assert joined(grown) == joined(whole), text


@pytest.mark.parametrize(
    "pattern",
    [["word "] * 59 + [".\n\n"], ["x = "] * 9 + ["\n"], ["word "] * 9 + ["\n- "], ["word "], ["| a | b |\n"], ["> "]],
    ids=["paragraphs", "code", "list", "one paragraph", "table", "quotes"],
)
@pytest.mark.parametrize("start", ["", "```\n", "| a | b |\n|---|---|\n"], ids=["", "in a fence", "after a table"])
def test_the_work_of_a_growing_answer_is_linear_in_its_length(pattern: list[str], start: str) -> None:
    lengths = [2_000, 20_000]
    pieces = [[start, *(pattern[n % len(pattern)] for n in range(tokens))] for tokens in lengths]
    read = [result[1] for result in call_all([("grown", (piece,)) for piece in pieces])]
    per_character = [characters / len("".join(parts)) for characters, parts in zip(read, pieces, strict=True)]
    assert per_character[1] <= 1.2 * per_character[0]
    assert max(per_character) < 200


# --- conversation.js ---


def test_each_deployment_goes_on_from_its_own_answers() -> None:
    def turn(prompt: str, **answers: str) -> dict[str, Any]:
        saved = [{"column": name, "text": text} for name, text in answers.items()]
        return {"prompt": prompt, "image": None, "answers": saved}

    turns = [
        turn("1", blue="b1", green="g1"),
        turn("2", green="g2"),
        turn("3", blue="", green=""),
        turn("4", blue="b4"),
    ]
    said = {name: [message["content"] for message in call("messages", turns, name)] for name in ("blue", "green", "")}
    assert said == {
        "blue": ["1", "b1", "2", "g2", "4", "b4"],
        "green": ["1", "g1", "2", "g2", "4", "b4"],
        "": ["1", "b1", "2", "g2", "4", "b4"],
    }
    assert [message["role"] for message in call("messages", turns, "blue")] == ["user", "assistant"] * 3


# --- request.js ---

FORM = {"endpoint": "chat", "task": "chat", "prompt": "hi"}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"temperature": "warm"}, "The temperature is a number from 0"),
        ({"temperature": "-1"}, "The temperature is a number from 0"),
        ({"topP": "1.5"}, "Top p is a number from 0 to 1"),
        ({"topK": "1.5"}, "Top k is a whole number from -1"),
        ({"minP": "-0.1"}, "Min p is a number from 0 to 1"),
        ({"presencePenalty": "3"}, "The presence penalty is a number from -2 to 2"),
        ({"maxTokens": "0"}, "Max tokens is a whole number from 1"),
        ({"maxTokens": "1.5"}, "Max tokens is a whole number from 1"),
        ({"seed": "1e99"}, "The seed is a whole number"),
        ({"tools": '"a"'}, "The tools are a list: […]"),
        ({"schema": "[]"}, "The JSON schema is an object: {…}"),
        ({"schema": "{"}, "The JSON schema is not valid JSON"),
        ({"task": "embeddings", "prompt": "\n \n"}, "Write a text, or several: one a line"),
        ({"task": "rerank", "documents": " \n"}, "Write a document, or several: one a line"),
        ({"task": "responses", "tools": "{}"}, "The tools are a list: […]"),
    ],
)
def test_fields_that_cannot_be_sent_are_named(fields: dict[str, str], message: str) -> None:
    with pytest.raises(PageError, match=message.replace("[…]", ".*").replace("{…}", ".*")):
        call("request", {**FORM, **fields})


def test_empty_fields_are_not_sent() -> None:
    empty = {"system": "", "temperature": " ", "seed": "", "maxTokens": "", "tools": "[]", "schema": "", "image": None}
    assert call("request", {**FORM, **empty})["body"] == {
        "model": "chat",
        "messages": [{"role": "user", "content": "hi"}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_every_parameter_has_its_field_and_an_error_leads_back_to_it() -> None:
    typed = {"temperature": "0.5", "topP": "0.9", "topK": "40", "minP": "0.05", "maxTokens": "20", "seed": "7"}
    typed |= {"frequencyPenalty": "-0.5", "presencePenalty": "1", "stop": "END\n\n\\n\\n"}
    body = call("request", {**FORM, **typed})["body"]
    sent: dict[str, Any] = {"temperature": 0.5, "top_p": 0.9, "top_k": 40, "min_p": 0.05, "max_tokens": 20, "seed": 7}
    sent |= {"frequency_penalty": -0.5, "presence_penalty": 1, "stop": ["END", "\n\n"]}
    assert {name: value for name, value in body.items() if name in sent} == sent
    assert sorted(call_all([("fieldOf", (name,)) for name in sent])) == sorted(typed)
    others = ["messages[1].content", "response_format.json_schema", "tools[0].function", "max_output_tokens", "n"]
    assert call_all([("fieldOf", (name,)) for name in others]) == ["prompt", "schema", "tools", "maxTokens", None]


# --- snippets.js ---


@batches
@given(st.lists(JSON, min_size=1, max_size=30))
def test_python_literals_evaluate_to_their_values(values: list[Any]) -> None:
    values = json.loads(json.dumps(values))
    for value, literal in zip(values, call_all([("python", (value,)) for value in values]), strict=True):
        assert ast.literal_eval(literal) == value
        assert not [character for character in literal if not (character.isprintable() or character == "\n")]


@batches
@given(st.lists(TEXT, min_size=1, max_size=30))
def test_shell_words_and_json_texts_decode_to_their_values(texts: list[str]) -> None:
    words = call_all([("shellWord", (text,)) for text in texts])
    for text, word in zip(texts, words, strict=True):
        assert shlex.split(word) == [text]
    bodies = call_all([("jsonText", ({"a": [text]}, 2)) for text in texts])
    for text, body in zip(texts, bodies, strict=True):
        assert json.loads(body) == {"a": [text]}
        assert not [character for character in body if not (character.isprintable() or character == "\n")]


@batches
@given(st.lists(TEXT, min_size=1, max_size=10))
def test_programs_parse_and_have_the_prompt_only_in_literals(prompts: list[str]) -> None:
    tasks = ["chat", "completions", "embeddings"]
    plain = [{**FORM, "task": task, "prompt": "x", "system": "x", "deployment": "blue"} for task in tasks]
    forms = [{**form, "prompt": f"x{prompt}", "system": f"x{prompt}"} for prompt in prompts for form in plain]
    url = "http://127.0.0.1:1"
    results = call_all(
        [*(("snippets", (form, url)) for form in [*plain, *forms]), *(("request", (form,)) for form in forms)]
    )
    wanted, made, requests = results[: len(plain)], results[len(plain) : -len(forms)], results[-len(forms) :]
    for index, (programs, request) in enumerate(zip(made, requests, strict=True)):
        for program, harmless in zip(programs, wanted[index % len(plain)], strict=True):
            if program["language"] == "python":
                assert shape(program["code"]) == shape(harmless["code"])
            elif program["language"] == "javascript":
                body = re.search(r"create\((\{.*?\n\}|\{\})", program["code"], re.S)
                assert body is not None
                assert json.loads(body[1]) == request["body"]
            else:
                words = shlex.split(program["code"])
                assert words[:2] == ["curl", "--no-buffer"]
                assert json.loads(words[-1]) == request["body"]


def shape(code: str) -> str:
    """The syntax tree without its strings, and lists of strings with one."""
    tree = ast.parse(code)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            node.value = ""
        if isinstance(node, ast.List):
            node.elts = node.elts[:1] if all(isinstance(element, ast.Constant) for element in node.elts) else node.elts
    return ast.dump(tree)
