"""TGI's Messages API: OpenAI's chat and completions as TGI speaks them."""
