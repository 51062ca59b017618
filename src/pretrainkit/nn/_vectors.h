/* What the compiled parts of `pretrainkit.nn` share: functions built once for each instruction set, exp, and the module.
 *
 * BY_PROCESSOR(name, (parameters), (arguments)) makes `name` out of an INLINE `name_for`, whose first argument says how
 * many vectors of 16 floats fit beside each other in the registers. The processor picks when it is called.
 */
#ifndef PRETRAINKIT_VECTORS_H
#define PRETRAINKIT_VECTORS_H

#include <Python.h>
#include <stdint.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))
#define LANES 16
#define MOST_THREADS 4096

/* Calls for what is soon read. What lies behind the end of an array may be called for too. */
#if defined(__GNUC__)
#define FETCH(place) __builtin_prefetch((const void *)(place), 0, 1)
#else
#define FETCH(place) ((void)0)
#endif

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define BY_PROCESSOR(name, parameters, arguments)                                                                      \
    __attribute__((target("avx512f,prefer-vector-width=512"))) static void name##_avx512 parameters {                 \
        PRETRAINKIT_CALL(name##_for, 4, arguments);                                                                    \
    }                                                                                                                  \
    __attribute__((target("avx2,fma"))) static void name##_avx2 parameters {                                           \
        PRETRAINKIT_CALL(name##_for, 1, arguments);                                                                    \
    }                                                                                                                  \
    static void name##_any parameters { PRETRAINKIT_CALL(name##_for, 1, arguments); }                                  \
    static void name parameters {                                                                                      \
        if (__builtin_cpu_supports("avx512f"))                                                                         \
            name##_avx512 arguments;                                                                                   \
        else if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))                                      \
            name##_avx2 arguments;                                                                                     \
        else                                                                                                           \
            name##_any arguments;                                                                                      \
    }
#else
#define BY_PROCESSOR(name, parameters, arguments)                                                                      \
    static void name parameters { PRETRAINKIT_CALL(name##_for, 1, arguments); }
#endif
#define PRETRAINKIT_CALL(name, wide, arguments) name(wide, PRETRAINKIT_BARE arguments)
#define PRETRAINKIT_BARE(...) __VA_ARGS__

#if defined(_OPENMP)
#define HAS_OPENMP 1
#else
#define HAS_OPENMP 0
#endif

/* The module, whose `has_openmp` says whether it computes on several threads. */
static inline PyObject *made_of(struct PyModuleDef *definition) {
    PyObject *made = PyModule_Create(definition);
    if (made && PyModule_AddIntConstant(made, "has_openmp", HAS_OPENMP)) Py_CLEAR(made);
    return made;
}

/* To 1 unit in the last place or two; what is too small becomes 1e-38, what is too large 1e38; NaN stays. */
INLINE float exponential(float x) {
    x = x < -87.0f ? -87.0f : x;
    x = x > 88.0f ? 88.0f : x;
    float whole = x * 1.44269504f + 12582912.0f; /* 1.5 * 2 ** 23: what follows the point is lost */
    whole -= 12582912.0f;
    float rest = x - whole * 0.693359375f + whole * 2.12194440e-4f; /* ln 2 in two parts */
    float sum = 1.0f / 5040;
    sum = sum * rest + 1.0f / 720;
    sum = sum * rest + 1.0f / 120;
    sum = sum * rest + 1.0f / 24;
    sum = sum * rest + 1.0f / 6;
    sum = sum * rest + 0.5f;
    sum = sum * rest + 1.0f;
    sum = sum * rest + 1.0f;
    uint32_t bits = (uint32_t)((int32_t)whole + 127) << 23;
    float power;
    memcpy(&power, &bits, sizeof power);
    return sum * power;
}

#endif
