/* Parts of an open model for the request language of programs in this tree. Not installed.
 * Thread: any; what is returned is immutable and lives as long as the model. */
#pragma once

#include "deepinfer/deepinfer.h"
#include "tokenizer/tokenizer.h"

/* The model's tokenizer; borrowed. */
const tokenizer *model_parts_tokenizer(const di_model *m);
