/* Result codes and the message that goes with a failure.
 *
 * Every function that can fail returns a di_code and, when it fails, leaves one line in the
 * caller's di_status that names the file, tensor, field or request at fault and what to do.
 * Thread: any; a di_status belongs to one caller. */
#pragma once

#ifdef __cplusplus
extern "C" {
#endif

#define DI_API __attribute__((visibility("default")))

/* One list makes the enum, the names and the HTTP status of the server. */
#define DI_CODES(X)                                                                                \
    /* name        HTTP  meaning */                                                                \
    X(INVALID, 400, "the caller's input is wrong")                                                 \
    X(FORMAT, 500, "the content of a file is wrong")                                               \
    X(IO, 500, "the system could not read or write")                                               \
    X(NOMEM, 503, "out of memory")                                                                 \
    X(BUSY, 429, "no capacity now, try again")                                                     \
    X(CANCELLED, 499, "cancelled by the caller")                                                   \
    X(UNSUPPORTED, 501, "not supported on this machine or by this build")                          \
    X(DEVICE, 500, "the accelerator or its driver failed")                                         \
    X(INTERNAL, 500, "a defect of the engine")

#define DI_CODE_ENUM(name, http, text) DI_E_##name,
typedef enum di_code { DI_OK, DI_CODES(DI_CODE_ENUM) DI_CODE_COUNT } di_code;
#undef DI_CODE_ENUM

/* The first failure of a call. `message` is one line, lower case, without a final period. */
typedef struct di_status {
    di_code code;
    char message[1000];
} di_status;

/* "INVALID", "FORMAT", ...; "OK" for DI_OK. Static storage. */
DI_API const char *di_code_name(di_code code);

/* The HTTP status that the server answers with for this code; 200 for DI_OK. */
DI_API int di_code_http(di_code code);

#ifdef __cplusplus
}
#endif
