/* Spellings of the control tokens in prompts and answers. Inside recipe only. */
#pragma once

/* The bars are U+FF5C, the low triangles U+2581. */
#define TOK_BOS       "<｜begin▁of▁sentence｜>"
#define TOK_EOS       "<｜end▁of▁sentence｜>"
#define TOK_SYSTEM    "<｜System｜>"
#define TOK_USER      "<｜User｜>"
#define TOK_ASSISTANT "<｜Assistant｜>"
#define TOK_REMINDER  "<｜latest_reminder｜>"
#define TOK_THINK     "<think>"
#define TOK_UNTHINK   "</think>"
#define TOK_DSML      "｜DSML｜"
#define TOK_IMAGE     "<｜image｜>"

/* What tokenizer.json calls the image token of V4.1; TOK_IMAGE in prompts. */
#define TOK_IMAGE_FILE "<｜deepseek_image｜>"
