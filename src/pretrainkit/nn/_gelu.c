/* x Phi(x) and its gradient with the exact Phi of the normal distribution, one pass over each, float32.
 *
 * Source of the approximation of erfc, whose absolute error is below 1.5e-7: Abramowitz and Stegun 1964, 7.1.26.
 * Arguments are buffers; their sizes are checked, so that none of them makes it read or write outside.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <math.h>

#include "_vectors.h"

#define BLOCK (1 << 14)

/* Phi(x), and exp(-x^2 / 2) into `bell`. */
INLINE float phi_and_bell(float x, float *bell) {
    float size = fabsf(x);
    float t = 1 / (1 + 0.3275911f * 0.70710678f * size);
    float sum = 1.061405429f;
    sum = sum * t - 1.453152027f;
    sum = sum * t + 1.421413741f;
    sum = sum * t - 0.284496736f;
    sum = sum * t + 0.254829592f;
    *bell = exponential(-0.5f * x * x);
    float tail = 0.5f * sum * t * *bell;
    return x > 0 ? 1 - tail : tail;
}

INLINE void forward_for(int wide, const float *x, float *restrict found, int64_t num) {
    (void)wide;
    for (int64_t f = 0; f < num; f++) {
        float bell;
        found[f] = x[f] * phi_and_bell(x[f], &bell);
    }
}

BY_PROCESSOR(forward, (const float *x, float *found, int64_t num), (x, found, num))

/* d/dx x Phi(x) = Phi(x) + x exp(-x^2 / 2) / sqrt(2 pi). */
INLINE void backward_for(int wide, const float *x, const float *above, float *restrict found, int64_t num) {
    (void)wide;
    for (int64_t f = 0; f < num; f++) {
        float bell, phi = phi_and_bell(x[f], &bell);
        found[f] = above[f] * (phi + x[f] * bell * 0.39894228f);
    }
}

BY_PROCESSOR(backward, (const float *x, const float *above, float *found, int64_t num), (x, above, found, num))

static PyObject *call(PyObject *args, int is_backward) {
    Py_buffer x, above, found;
    int num_threads;
    if (is_backward ? !PyArg_ParseTuple(args, "y*y*w*i", &x, &above, &found, &num_threads)
                    : !PyArg_ParseTuple(args, "y*w*i", &x, &found, &num_threads))
        return NULL;
    int is_right = num_threads > 0 && num_threads <= MOST_THREADS && x.itemsize == 4 && found.itemsize == 4 &&
                   x.len == found.len && (!is_backward || (above.itemsize == 4 && above.len == x.len));
    if (is_right) {
        const float *from = x.buf, *grad = is_backward ? above.buf : NULL;
        float *to = found.buf;
        int64_t num = x.len / 4;
        Py_BEGIN_ALLOW_THREADS
#pragma omp parallel for num_threads(num_threads) if (num > BLOCK)
        for (int64_t first = 0; first < num; first += BLOCK) {
            int64_t some = num - first < BLOCK ? num - first : BLOCK;
            if (is_backward)
                backward(from + first, grad + first, to + first, some);
            else
                forward(from + first, to + first, some);
        }
        Py_END_ALLOW_THREADS
    } else
        PyErr_SetString(PyExc_ValueError, "the arrays do not fit each other");
    PyBuffer_Release(&x);
    if (is_backward)
        PyBuffer_Release(&above);
    PyBuffer_Release(&found);
    if (!is_right)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *call_forward(PyObject *module, PyObject *args) { return call(args, 0); }

static PyObject *call_backward(PyObject *module, PyObject *args) { return call(args, 1); }

static PyMethodDef methods[] = {
    {"forward", call_forward, METH_VARARGS,
     "forward(x, found, num_threads)\n\n"
     "Writes the exact GELU of x into found, float32 of the same size. ValueError: they do not fit."},
    {"backward", call_backward, METH_VARARGS,
     "backward(x, above, found, num_threads)\n\n"
     "Writes the gradient of x into found, given that of the GELU, `above`."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_gelu", NULL, 0, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__gelu(void) { return made_of(&module); }
