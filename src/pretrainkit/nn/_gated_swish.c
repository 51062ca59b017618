/* swish(gate) * up and its gradient, one pass over each, float32.
 *
 * Arguments are buffers; their sizes are checked, so that none of them makes it read or write outside.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "_vectors.h"

/* Rows ahead of the one that is worked on, to call for: the processor foresees what lies in the same page alone. */
#define AHEAD 2

INLINE void forward_one(float gate, float up, float *inner) { *inner = gate / (1 + exponential(-gate)) * up; }

/* Of a row, with another one 2 num floats behind it. */
INLINE void forward_for(int wide, const float *gate, const float *up, float *restrict inner, int64_t num) {
    (void)wide;
    int64_t f = 0;
    for (; f + LANES <= num; f += LANES) {
        FETCH(gate + f + AHEAD * 2 * num);
        FETCH(up + f + AHEAD * 2 * num);
        for (int64_t l = f; l < f + LANES; l++)
            forward_one(gate[l], up[l], inner + l);
    }
    for (; f < num; f++)
        forward_one(gate[f], up[f], inner + f);
}

BY_PROCESSOR(forward, (const float *gate, const float *up, float *inner, int64_t num), (gate, up, inner, num))

/* d/dx x s(x) = s + x s (1 - s) = s (1 + x (1 - s)) with a sigmoid s. */
INLINE void backward_one(float gate, float up, float above, float *inner, float *to_gate, float *to_up) {
    float sigmoid = 1 / (1 + exponential(-gate)), swish = gate * sigmoid;
    *inner = swish * up;
    *to_up = above * swish;
    *to_gate = above * up * sigmoid * (1 + gate * (1 - sigmoid));
}

INLINE void backward_for(int wide, const float *gate, const float *up, const float *above, float *restrict inner,
                         float *restrict to_gate, float *restrict to_up, int64_t num) {
    (void)wide;
    int64_t f = 0;
    for (; f + LANES <= num; f += LANES) {
        FETCH(gate + f + AHEAD * 2 * num);
        FETCH(up + f + AHEAD * 2 * num);
        FETCH(above + f + AHEAD * num);
        for (int64_t l = f; l < f + LANES; l++)
            backward_one(gate[l], up[l], above[l], inner + l, to_gate + l, to_up + l);
    }
    for (; f < num; f++)
        backward_one(gate[f], up[f], above[f], inner + f, to_gate + f, to_up + f);
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
