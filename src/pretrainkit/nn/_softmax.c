/* exp(x - max) of rows in place, with their maxima, sums and the entry of a target, float32, while a row is in the cache.
 *
 * Arguments are buffers; their sizes are checked, so that none of them makes it read or write outside.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "_vectors.h"

/* Floats ahead of what is worked on, to call for: the processor foresees what lies in the same page alone. */
#define AHEAD 1024

/* The maximum of a row; what is not a number is left out. */
INLINE void highest_for(int wide, const float *row, int64_t width, float *found) {
    (void)wide;
    float tops[LANES], top = -__builtin_inff();
    int64_t c = 0;
    for (int l = 0; l < LANES; l++)
        tops[l] = top;
    for (; c + LANES <= width; c += LANES) {
        FETCH(row + c + AHEAD);
        for (int l = 0; l < LANES; l++)
            tops[l] = row[c + l] > tops[l] ? row[c + l] : tops[l];
    }
    for (; c < width; c++)
        top = row[c] > top ? row[c] : top;
    for (int l = 0; l < LANES; l++)
        top = tops[l] > top ? tops[l] : top;
    *found = top;
}

BY_PROCESSOR(highest, (const float *row, int64_t width, float *found), (row, width, found))

INLINE void exponentials_for(int wide, float *row, int64_t width, float top, float *found) {
    (void)wide;
    float sums[LANES] = {0}, sum = 0;
    int64_t c = 0;
    for (; c + LANES <= width; c += LANES)
        for (int l = 0; l < LANES; l++) {
            row[c + l] = exponential(row[c + l] - top);
            sums[l] += row[c + l];
        }
    for (; c < width; c++) {
        row[c] = exponential(row[c] - top);
        sum += row[c];
    }
    for (int l = 0; l < LANES; l++)
        sum += sums[l];
    *found = sum;
}

BY_PROCESSOR(exponentials, (float *row, int64_t width, float top, float *found), (row, width, top, found))

static PyObject *softmax(PyObject *module, PyObject *args) {
    Py_buffer logits, targets, found;
    Py_ssize_t width, first;
    int num_threads;
    if (!PyArg_ParseTuple(args, "w*y*w*nni", &logits, &targets, &found, &width, &first, &num_threads))
        return NULL;
    int64_t num = targets.len / 8, row = num ? logits.len / (num * 4) : 0;
    int is_right = targets.itemsize == 8 && targets.len == num * 8 && logits.itemsize == 4 && found.itemsize == 4 &&
                   logits.len == num * row * 4 && found.len == 3 * num * 4 && width > 0 && first >= 0 && (!num || width <= row) &&
                   num_threads > 0 && num_threads <= MOST_THREADS;
    if (is_right) {
        const int64_t *target = targets.buf;
        float *rows = logits.buf, *tops = found.buf, *sums = tops + num, *entries = sums + num;
        Py_BEGIN_ALLOW_THREADS
#pragma omp parallel for num_threads(num_threads)
        for (int64_t k = 0; k < num; k++) {
            float *one = rows + k * row;
            if (target[k] >= first && target[k] - first < width)
                entries[k] = one[target[k] - first];
            highest(one, width, tops + k);
            exponentials(one, width, tops[k] == -__builtin_inff() ? 0 : tops[k], sums + k); /* 0 of all of them */
        }
        Py_END_ALLOW_THREADS
    } else
        PyErr_SetString(PyExc_ValueError, "the arrays do not fit each other");
    PyBuffer_Release(&logits);
    PyBuffer_Release(&targets);
    PyBuffer_Release(&found);
    if (!is_right)
        return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"softmax", softmax, METH_VARARGS,
     "softmax(logits, targets, found, width, first, num_threads)\n\n"
     "Replaces the first `width` entries x of rows, float32 (K, row), by exp(x - max), and writes into found, float32\n"
     "(3, K), max, the sum of exp(x - max), and x at the row's target where targets, int64 (K,), minus `first` is one of\n"
     "these entries. ValueError: they do not fit."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_softmax", NULL, 0, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__softmax(void) { return made_of(&module); }
