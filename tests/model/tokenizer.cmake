di_unpack(tokenizer-v4/tokenizer.json.xz recipe/tokenizer.jsonl.xz recipe/pretok.jsonl.xz
          recipe/decode.jsonl.xz)
