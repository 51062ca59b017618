/* Span corruption of a batch of segments: inputs and targets from keys, tokens and the numbers of noise tokens and runs.
 *
 * The same draws as `compositions` makes of the same keys (`pretrainkit.data.subsets`, `pretrainkit.rng`): how a number
 * of tokens is cut into runs is a random subset of the places between them, by Floyd's algorithm, from the upper 32 bits
 * of each draw. Arguments are buffers; lengths are checked here, so that no content of theirs makes it read or write
 * outside.
 *
 * Factor of CPU time without it: span corruption of T5 3
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "_draws.h"

/* Marks `num` of the places 0 ... size - 1, all subsets equally likely. `is_cut` has `size` zeros before. */
static void draw_subset(uint64_t key, int64_t num, int64_t size, unsigned char *is_cut) {
    for (int64_t turn = 0; turn < num; turn++) {
        uint64_t last = (uint64_t)(size - num + turn);
        uint64_t draw = draw_bits(key, (uint64_t)turn) >> 32;
        uint64_t place = draw * (last + 1) >> 32;
        is_cut[is_cut[place] ? last : place] = 1;
    }
}

/* The length of the run that begins at `from`; `total` ends the last one. */
static inline int64_t run_length(const unsigned char *is_cut, int64_t from, int64_t total) {
    if (from >= total - 1)
        return total - from;
    const unsigned char *cut = memchr(is_cut + from, 1, (size_t)(total - 1 - from));
    return cut ? cut - (is_cut + from) + 1 : total - from;
}

typedef struct {
    const uint64_t *clean_keys, *noise_keys;
    const int32_t *tokens, *sentinels;
    const int64_t *lengths, *num_noise, *num_runs;
    int32_t *inputs, *targets;
    int64_t num_segments;
    int32_t end;
} Batch;

static void corrupt(const Batch *batch, unsigned char *clean_cuts, unsigned char *noise_cuts) {
    const int32_t *token = batch->tokens;
    int32_t *input = batch->inputs, *target = batch->targets;
    for (int64_t row = 0; row < batch->num_segments; row++) {
        int64_t num_noise = batch->num_noise[row], num_runs = batch->num_runs[row];
        int64_t num_clean = batch->lengths[row] - num_noise;
        memset(clean_cuts, 0, (size_t)num_clean);
        memset(noise_cuts, 0, (size_t)num_noise);
        draw_subset(batch->clean_keys[row], num_runs - 1, num_clean - 1, clean_cuts);
        draw_subset(batch->noise_keys[row], num_runs - 1, num_noise - 1, noise_cuts);
        int64_t clean_done = 0, noise_done = 0;
        for (int64_t run = 0; run < num_runs; run++) {
            int64_t clean = run_length(clean_cuts, clean_done, num_clean);
            int64_t noise = run_length(noise_cuts, noise_done, num_noise);
            memcpy(input, token, (size_t)clean * sizeof *token);
            input += clean;
            token += clean;
            *input++ = *target++ = batch->sentinels[run];
            memcpy(target, token, (size_t)noise * sizeof *token);
            target += noise;
            token += noise;
            clean_done += clean;
            noise_done += noise;
        }
        *input++ = *target++ = batch->end;
    }
}

static int is_array(const Py_buffer *view, Py_ssize_t itemsize, Py_ssize_t num, const char *name) {
    if (view->itemsize == itemsize && view->len == num * itemsize)
        return 1;
    PyErr_Format(PyExc_ValueError, "%s has %zd bytes in items of %zd, not %zd items of %zd", name, view->len,
                 view->itemsize, num, itemsize);
    return 0;
}

/* Whether the counts fit each other and the arrays; `longest` becomes the most tokens of a segment. */
static int fits(const Batch *batch, int64_t num_tokens, int64_t num_inputs, int64_t num_targets, int64_t num_sentinels,
                int64_t *longest) {
    int64_t tokens = 0, inputs = 0, targets = 0;
    *longest = 0;
    for (int64_t row = 0; row < batch->num_segments; row++) {
        int64_t length = batch->lengths[row], noise = batch->num_noise[row], runs = batch->num_runs[row];
        if (length < 2 || length > UINT32_MAX || noise < 1 || runs < 1 || runs > noise || runs > num_sentinels ||
            noise >= length || runs > length - noise)
            return 0;
        tokens += length;
        inputs += length - noise + runs + 1;
        targets += noise + runs + 1;
        if (tokens > num_tokens || inputs > num_inputs || targets > num_targets)
            return 0;
        if (length > *longest)
            *longest = length;
    }
    return tokens == num_tokens && inputs == num_inputs && targets == num_targets;
}

static PyObject *corrupt_spans(PyObject *module, PyObject *args) {
    Py_buffer view[9];
    int end;
    static const char *const names[] = {"clean_keys", "noise_keys", "lengths",   "num_noise", "num_runs",
                                        "tokens",     "sentinels",  "inputs",    "targets"};
    if (!PyArg_ParseTuple(args, "y*y*y*y*y*y*y*iw*w*", &view[0], &view[1], &view[2], &view[3], &view[4], &view[5],
                          &view[6], &end, &view[7], &view[8]))
        return NULL;
    int is_right = 1;
    Py_ssize_t num_segments = view[2].len / 8;
    for (int index = 0; index < 9 && is_right; index++) {
        Py_ssize_t itemsize = index < 5 ? 8 : 4;
        Py_ssize_t num = index < 5 ? num_segments : view[index].len / 4;
        is_right = is_array(&view[index], itemsize, num, names[index]);
    }
    Batch batch = {view[0].buf, view[1].buf, view[5].buf, view[6].buf, view[2].buf,
                   view[3].buf, view[4].buf, view[7].buf, view[8].buf, num_segments, end};
    int64_t longest = 0;
    unsigned char *cuts = NULL;
    if (is_right &&
        !fits(&batch, view[5].len / 4, view[7].len / 4, view[8].len / 4, view[6].len / 4, &longest)) {
        PyErr_SetString(PyExc_ValueError, "the numbers of tokens, noise and runs do not fit the arrays");
        is_right = 0;
    }
    if (is_right && !(cuts = malloc(2 * (size_t)longest + 1))) {
        PyErr_NoMemory();
        is_right = 0;
    }
    if (is_right) {
        Py_BEGIN_ALLOW_THREADS
        corrupt(&batch, cuts, cuts + longest);
        Py_END_ALLOW_THREADS
    }
    free(cuts);
    for (int index = 0; index < 9; index++)
        PyBuffer_Release(&view[index]);
    if (!is_right)
        return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"corrupt_spans", corrupt_spans, METH_VARARGS,
     "corrupt_spans(clean_keys, noise_keys, lengths, num_noise, num_runs, tokens, sentinels, end, inputs, targets)\n\n"
     "Fills inputs and targets (int32), segment after segment, each with `end` after it. Keys are uint64; lengths, of the\n"
     "tokens (int32), and numbers are int64, one for each segment. ValueError: they do not fit each other."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_spans", NULL, 0, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__spans(void) { return PyModule_Create(&module); }
