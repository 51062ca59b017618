/* Draws which tokens of sequences are kept: the same draws and results as `kept_by_numpy` of sequences.py, but an
 * attempt ends at the first token that exceeds the budget.
 *
 * The arguments are buffers. Their sizes and contents are checked, so no argument leads to reads or writes out of bounds.
 *
 * Factor of CPU time without it: masking of 4M up to 1.6
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#include "_draws.h"

/* Marks the kept tokens of an attempt. Returns 1 if they, and a sentinel for each hidden span, fit the budget. */
static int attempt(uint64_t key, double keep, int64_t budget, const int32_t *units, int64_t length,
                   unsigned char *is_kept) {
    int64_t num_inputs = 0;
    unsigned char before = 1;
    for (int64_t place = 0; place < length; place++) {
        uint64_t unit = units ? (uint64_t)(int64_t)units[place] : (uint64_t)place;
        double uniform = (double)(draw_bits(draw_bits(key, unit), 0) >> 11) * 0x1p-53;
        unsigned char kept = uniform <= keep;
        num_inputs += kept | before;
        if (num_inputs > budget)
            return 0;
        is_kept[place] = kept;
        before = kept;
    }
    return 1;
}

static void keep_row(uint64_t key, double keep, int64_t budget, int64_t number, const double *faded, int64_t num_faded,
                     const int32_t *units, int64_t length, unsigned char *is_kept) {
    for (;; number++) {
        double faded_keep = keep * faded[number < num_faded ? number : num_faded - 1];
        if (attempt(draw_bits(key, (uint64_t)number), faded_keep, budget, units, length, is_kept))
            return;
    }
}

static PyObject *keep(PyObject *module, PyObject *args) {
    Py_buffer view[8];
    if (!PyArg_ParseTuple(args, "y*y*y*y*y*y*y*w*", &view[0], &view[1], &view[2], &view[3], &view[4], &view[5],
                          &view[6], &view[7]))
        return NULL;
    Py_ssize_t num_rows = view[0].len / 8, num_tokens = view[7].len;
    int is_right = view[5].itemsize == 8 && view[5].len >= 8 && view[7].itemsize == 1;
    for (int index = 0; index < 5; index++)
        is_right = is_right && view[index].itemsize == 8 && view[index].len == num_rows * 8;
    int has_units = view[6].len > 0;
    is_right = is_right && (!has_units || (view[6].itemsize == 4 && view[6].len == num_tokens * 4));
    const int64_t *budgets = view[2].buf, *first = view[3].buf, *lengths = view[4].buf;
    int64_t total = 0;
    for (Py_ssize_t row = 0; row < num_rows && is_right; row++) {
        is_right = lengths[row] >= 0 && lengths[row] <= num_tokens - total && first[row] >= 0;
        total += lengths[row];
    }
    is_right = is_right && total == num_tokens;
    if (is_right) {
        Py_BEGIN_ALLOW_THREADS
        unsigned char *is_kept = view[7].buf;
        const int32_t *units = has_units ? view[6].buf : NULL;
        for (Py_ssize_t row = 0; row < num_rows; row++) {
            if (budgets[row] > 0)
                keep_row(((const uint64_t *)view[0].buf)[row], ((const double *)view[1].buf)[row], budgets[row],
                         first[row], view[5].buf, view[5].len / 8, units, lengths[row], is_kept);
            is_kept += lengths[row];
            units = units ? units + lengths[row] : NULL;
        }
        Py_END_ALLOW_THREADS
    } else {
        PyErr_SetString(PyExc_ValueError, "the sizes or values of the arrays do not match");
    }
    for (int index = 0; index < 8; index++)
        PyBuffer_Release(&view[index]);
    if (!is_right)
        return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"keep", keep, METH_VARARGS,
     "keep(keys, keep, budgets, attempts, lengths, faded, units, is_kept)\n\n"
     "Sets the kept tokens in is_kept, bool (F,) of zeros. Keys are uint64; keep is float64; budgets, attempts (number\n"
     "of the first attempt) and lengths are int64; all are (R,). faded is float64. units is int32 (F,), or empty if each\n"
     "token is a unit. Sets nothing where a budget is 0. Raises ValueError if sizes or values do not match."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_keep", NULL, 0, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__keep(void) { return PyModule_Create(&module); }
