/* Small functions that both host and device code call: DI_FN in place of static inline. */
#pragma once

#ifdef __CUDACC__
#define DI_FN static inline __host__ __device__
#else
#define DI_FN static inline
#endif
