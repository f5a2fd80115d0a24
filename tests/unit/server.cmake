set(server_uses base formats checkpoint tensor kernels tokenizer grammar recipe kv model sampler engine server)
di_test(test_server_http SOURCES unit/server_http_test.c USES ${server_uses} LABELS unit)
di_test(test_server_relay SOURCES unit/server_relay_test.c USES ${server_uses} LABELS unit thread)
di_test(test_server_due_heap SOURCES unit/server_due_heap_test.c USES ${server_uses} LABELS unit)
