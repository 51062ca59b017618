/* Draw span masks for a batch of texts. Draws and masks are equal to those of `draw_spans_by_python` of masking.py.
 *
 * Arguments are buffers. Their sizes and contents are checked, so that nothing is read or written out of bounds.
 *
 * Factor of CPU time without it: span masks of PIXEL 35
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#include "_draws.h"

#define TRIES 100

/* Return draw number `turn` of a key as a number in [0, 1). */
static inline double draw(uint64_t key, uint64_t turn) { return (double)(draw_bits(key, turn) >> 11) * 0x1p-53; }

/* Count the hidden patches from `begin` up to `end`. Patches outside of the row count as visible. */
static inline int64_t num_hidden(const unsigned char *row, int64_t begin, int64_t end, int64_t width) {
    int64_t num = 0;
    if (begin < 0)
        begin = 0;
    if (end > width)
        end = width;
    for (int64_t place = begin; place < end; place++)
        num += row[place];
    return num;
}

static void draw_row(uint64_t key, int64_t length, int64_t size, int64_t wanted, const double *weights, int64_t longest,
                     int64_t spacing, unsigned char *row, int64_t width) {
    int64_t count = 0;
    int fails = 0, is_first = 1;
    for (uint64_t turn = 0; count < wanted && fails < TRIES; turn++, fails++) {
        double share = draw(key, 2 * turn);
        int64_t run = 1;
        while (run < longest && weights[run - 1] <= share)
            run++;
        if (run >= size)
            continue;
        int64_t last = is_first ? length - run : size - run; /* last possible begin of the run */
        int64_t left = (int64_t)(draw(key, 2 * turn + 1) * (double)((last > 0 ? last : 0) + 1));
        int64_t end = left + run, gap = spacing < 0 ? run : spacing;
        is_first = 0;
        if (num_hidden(row, left - gap, left, width) || num_hidden(row, end, end + gap, width))
            continue;
        int64_t added = run - num_hidden(row, left, end, width);
        int64_t budget = wanted - count < longest ? wanted - count : longest;
        if (added < 1 || added > budget)
            continue;
        memset(row + left, 1, (size_t)run);
        count += added;
        fails = -1;
    }
}

static PyObject *draw_spans(PyObject *module, PyObject *args) {
    Py_buffer view[6];
    int spacing;
    if (!PyArg_ParseTuple(args, "y*y*y*y*y*iw*", &view[0], &view[1], &view[2], &view[3], &view[4], &spacing, &view[5]))
        return NULL;
    Py_ssize_t num_rows = view[0].len / 8;
    int is_right = view[4].len >= 8 && view[4].len % 8 == 0 && view[5].itemsize == 1;
    for (int index = 0; index < 4; index++)
        is_right = is_right && view[index].itemsize == 8 && view[index].len == num_rows * 8;
    is_right = is_right && (num_rows ? view[5].len % num_rows == 0 : view[5].len == 0);
    int64_t width = num_rows ? view[5].len / num_rows : 0;
    const int64_t *lengths = view[1].buf, *sizes = view[2].buf, *wanted = view[3].buf;
    for (Py_ssize_t row = 0; row < num_rows && is_right; row++)
        is_right = lengths[row] <= sizes[row] && sizes[row] <= width;
    if (is_right) {
        Py_BEGIN_ALLOW_THREADS
        for (Py_ssize_t row = 0; row < num_rows; row++)
            draw_row(((const uint64_t *)view[0].buf)[row], lengths[row], sizes[row], wanted[row], view[4].buf,
                     view[4].len / 8, spacing, (unsigned char *)view[5].buf + row * width, width);
        Py_END_ALLOW_THREADS
    } else {
        PyErr_SetString(PyExc_ValueError, "the arrays do not match, or a text is longer than its row");
    }
    for (int index = 0; index < 6; index++)
        PyBuffer_Release(&view[index]);
    if (!is_right)
        return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"draw_spans", draw_spans, METH_VARARGS,
     "draw_spans(keys, lengths, sizes, wanted, cumulative_weights, spacing, is_masked)\n\n"
     "Set the hidden patches in is_masked, bool (B, N) of zeros. Keys are uint64, lengths, sizes and wanted int64,\n"
     "all (B,); weights are float64. A spacing below 0 means the length of the run. ValueError if the arrays differ."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_masks", NULL, 0, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__masks(void) { return PyModule_Create(&module); }
