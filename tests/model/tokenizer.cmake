di_unpack(tokenizer-v4/tokenizer.json.xz recipe/tokenizer.jsonl.xz recipe/pretok.jsonl.xz
          recipe/decode.jsonl.xz)
di_test(golden_tokenizer SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/model/golden_tokenizer.c
        USES base tokenizer LABELS model)
