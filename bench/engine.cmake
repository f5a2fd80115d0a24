set(engine_uses base formats checkpoint tensor kernels tokenizer kv recipe model dspark sampler sched
                engine)
di_bench(bench_engine SOURCES engine.c engine_rig.c USES ${engine_uses} LINK m)
di_bench(bench_drafts SOURCES drafts.c engine_rig.c USES ${engine_uses} LINK m)
di_bench(bench_prefix SOURCES prefix.c turns.c engine_rig.c USES ${engine_uses} LINK m)
