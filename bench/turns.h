/* Conversations that take turns; see turns.c. */
#pragma once

/* A row per kind of load and share of the memory: rows computed, in % of a store without cache. */
void measure_turns(void);
