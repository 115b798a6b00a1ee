"""TGI's Messages API: OpenAI's chat and completions in TGI's form."""
