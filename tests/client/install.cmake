# Programs that link the library would need the sanitizers' run time.
if(TARGET deepinfer_static AND NOT DI_SANITIZE)
  di_pytest(test_install tests/client/test_install.py LABELS client)
endif()
