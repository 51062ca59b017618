/* swish(gate) * up and its gradient, one pass over each, float32.
 *
 * Arguments are buffers; their sizes are checked, so that none of them makes it read or write outside.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "_vectors.h"

INLINE void forward_for(int wide, const float *gate, const float *up, float *restrict inner, int64_t num) {
    (void)wide;
    for (int64_t f = 0; f < num; f++)
        inner[f] = gate[f] / (1 + exponential(-gate[f])) * up[f];
}

BY_PROCESSOR(forward, (const float *gate, const float *up, float *inner, int64_t num), (gate, up, inner, num))

/* d/dx x s(x) = s + x s (1 - s) = s (1 + x (1 - s)) with a sigmoid s. */
INLINE void backward_for(int wide, const float *gate, const float *up, const float *above, float *restrict inner,
                         float *restrict to_gate, float *restrict to_up, int64_t num) {
    (void)wide;
    for (int64_t f = 0; f < num; f++) {
        float sigmoid = 1 / (1 + exponential(-gate[f])), swish = gate[f] * sigmoid;
        inner[f] = swish * up[f];
        to_up[f] = above[f] * swish;
        to_gate[f] = above[f] * up[f] * sigmoid * (1 + gate[f] * (1 - sigmoid));
    }
}

BY_PROCESSOR(backward,
             (const float *gate, const float *up, const float *above, float *inner, float *to_gate, float *to_up,
              int64_t num),
             (gate, up, above, inner, to_gate, to_up, num))

/* both (T, 2 F) and an array (T, F), and for backward one more (T, 2 F); whether they fit. */
static int fits(const Py_buffer *both, const Py_buffer *inner, const Py_buffer *more, Py_ssize_t width) {
    return width > 0 && width < 1 << 28 && both->itemsize == 4 && inner->itemsize == 4 && inner->len % (width * 4) == 0 &&
           both->len == 2 * inner->len && (more == NULL || (more->itemsize == 4 && more->len == both->len));
}

static PyObject *call_forward(PyObject *module, PyObject *args) {
    Py_buffer both, inner;
    Py_ssize_t width;
    int num_threads;
    if (!PyArg_ParseTuple(args, "y*w*ni", &both, &inner, &width, &num_threads))
        return NULL;
    int is_right = num_threads > 0 && num_threads <= MOST_THREADS && fits(&both, &inner, NULL, width);
    if (is_right) {
        const float *from = both.buf;
        float *to = inner.buf;
        int64_t num = inner.len / (width * 4);
        Py_BEGIN_ALLOW_THREADS
#pragma omp parallel for num_threads(num_threads)
        for (int64_t t = 0; t < num; t++)
            forward(from + t * 2 * width, from + t * 2 * width + width, to + t * width, width);
        Py_END_ALLOW_THREADS
    } else
        PyErr_SetString(PyExc_ValueError, "the arrays do not fit each other");
    PyBuffer_Release(&both);
    PyBuffer_Release(&inner);
    if (!is_right)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *call_backward(PyObject *module, PyObject *args) {
    Py_buffer both, above, inner, found;
    Py_ssize_t width;
    int num_threads;
    if (!PyArg_ParseTuple(args, "y*y*w*w*ni", &both, &above, &inner, &found, &width, &num_threads))
        return NULL;
    int is_right = num_threads > 0 && num_threads <= MOST_THREADS && fits(&both, &above, &found, width) && fits(&both, &inner, NULL, width);
    if (is_right) {
        const float *from = both.buf, *grad = above.buf;
        float *to = found.buf, *made = inner.buf;
        int64_t num = above.len / (width * 4);
        Py_BEGIN_ALLOW_THREADS
#pragma omp parallel for num_threads(num_threads)
        for (int64_t t = 0; t < num; t++) {
            int64_t gate = t * 2 * width, up = gate + width;
            backward(from + gate, from + up, grad + t * width, made + t * width, to + gate, to + up, width);
        }
        Py_END_ALLOW_THREADS
    } else
        PyErr_SetString(PyExc_ValueError, "the arrays do not fit each other");
    PyBuffer_Release(&both);
    PyBuffer_Release(&above);
    PyBuffer_Release(&inner);
    PyBuffer_Release(&found);
    if (!is_right)
        return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"forward", call_forward, METH_VARARGS,
     "forward(both, inner, width, num_threads)\n\n"
     "Writes swish(gate) * up into inner, float32 (T, F); both is float32 (T, 2 F), a gate beside an up in each row; F is\n"
     "the width. ValueError: they do not fit."},
    {"backward", call_backward, METH_VARARGS,
     "backward(both, above, inner, found, width, num_threads)\n\n"
     "Writes inner again, and the gradient of both into found, given that of inner, `above`."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_gated_swish", NULL, 0, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__gated_swish(void) { return PyModule_Create(&module); }
