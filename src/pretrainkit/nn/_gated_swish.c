/* swish(gate) * up and its gradient, one pass over each, float32.
 *
 * Arguments are buffers; their sizes are checked, so that none of them makes it read or write outside.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "_vectors.h"

/* Floats ahead of what is worked on, to call for: the processor foresees what lies in the same page alone. */
#define AHEAD 2048

INLINE void forward_one(float gate, float up, float *inner) { *inner = gate / (1 + exponential(-gate)) * up; }

INLINE void forward_for(int wide, const float *gate, const float *up, float *restrict inner, int64_t num) {
    (void)wide;
    int64_t f = 0;
    for (; f + LANES <= num; f += LANES) {
        FETCH(gate + f + AHEAD);
        FETCH(up + f + AHEAD);
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
        FETCH(gate + f + AHEAD);
        FETCH(up + f + AHEAD);
        FETCH(above + f + AHEAD / 2);
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

enum { BOTH, INNER, ABOVE, FOUND, ARRAYS };

/* Whether all arrays have the same number of rows, as long as they must be; `rows`: floats from one to the next. */
static int fit(const Py_buffer *arrays, int num_arrays, int64_t width, Py_ssize_t *rows, int num_threads) {
    int is_right = width > 0 && width < 1 << 28 && num_threads > 0 && num_threads <= MOST_THREADS;
    for (int i = 0; is_right && i < num_arrays; i++) {
        is_right = arrays[i].ndim == 2 && arrays[i].itemsize == 4 && arrays[i].shape[0] == arrays[0].shape[0] &&
                   arrays[i].shape[1] >= (i == BOTH || i == FOUND ? 2 : 1) * width;
        rows[i] = is_right ? arrays[i].shape[1] : 0;
    }
    return is_right;
}

static PyObject *call(PyObject *args, int is_backward) {
    Py_buffer arrays[ARRAYS];
    Py_ssize_t width, rows[ARRAYS];
    int num_threads, num_arrays = is_backward ? ARRAYS : ABOVE, flags[ARRAYS] = {0, PyBUF_WRITABLE, 0, PyBUF_WRITABLE};
    PyObject *objects[ARRAYS];
    if (is_backward ? !PyArg_ParseTuple(args, "OOOOni", objects, objects + 1, objects + 2, objects + 3, &width, &num_threads)
                    : !PyArg_ParseTuple(args, "OOni", objects, objects + 1, &width, &num_threads))
        return NULL;
    for (int i = 0; i < num_arrays; i++)
        if (PyObject_GetBuffer(objects[i], arrays + i, PyBUF_ND | flags[i]) < 0) {
            while (i--)
                PyBuffer_Release(arrays + i);
            return NULL;
        }
    int is_right = fit(arrays, num_arrays, width, rows, num_threads);
    if (is_right) {
        const float *both = arrays[BOTH].buf, *above = is_backward ? arrays[ABOVE].buf : NULL;
        float *inner = arrays[INNER].buf, *found = is_backward ? arrays[FOUND].buf : NULL;
        int64_t num = arrays[BOTH].shape[0];
        Py_BEGIN_ALLOW_THREADS
#pragma omp parallel for num_threads(num_threads)
        for (int64_t t = 0; t < num; t++) {
            const float *gate = both + t * rows[BOTH];
            if (is_backward) {
                float *to_gate = found + t * rows[FOUND];
                backward(gate, gate + width, above + t * rows[ABOVE], inner + t * rows[INNER], to_gate, to_gate + width, width);
            } else
                forward(gate, gate + width, inner + t * rows[INNER], width);
        }
        Py_END_ALLOW_THREADS
    } else
        PyErr_SetString(PyExc_ValueError, "the arrays do not fit each other");
    for (int i = 0; i < num_arrays; i++)
        PyBuffer_Release(arrays + i);
    if (!is_right)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *call_forward(PyObject *module, PyObject *args) { return call(args, 0); }

static PyObject *call_backward(PyObject *module, PyObject *args) { return call(args, 1); }

static PyMethodDef methods[] = {
    {"forward", call_forward, METH_VARARGS,
     "forward(both, inner, width, num_threads)\n\n"
     "Writes swish(gate) * up into inner, float32 (T, F); both is float32 (T, 2 F), a gate beside an up in each row; F is\n"
     "the width. Rows may be longer: the rest of them is not touched. ValueError: they do not fit."},
    {"backward", call_backward, METH_VARARGS,
     "backward(both, inner, above, found, width, num_threads)\n\n"
     "Writes inner again, and the gradient of both into found, given that of inner, `above`."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_gated_swish", NULL, 0, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__gated_swish(void) { return made_of(&module); }
