if(TARGET deepinfer)
  di_pytest(test_cli tests/client/test_cli.py LABELS client TIMEOUT 900)
endif()
