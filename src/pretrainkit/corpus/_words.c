/* Count the words of byte buffers in a hash table.
 *
 * A word is a maximal run of bytes other than space, TAB, LF and CR. Any buffer is valid input.
 *
 * Short words (up to 8 bytes) are stored in `tag`. Longer words are compared by a 64-bit hash, their length, and their
 * bytes in the arena. The table uses open addressing with linear probing and is at most 5/8 full. The scanner has two
 * paths with equal results; the one that reads 8 bytes at a time needs little-endian loads.
 *
 * Factor of CPU time without it: counting words 5
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ && defined(__GNUC__)
#define WIDE_SCAN 1
#else
#define WIDE_SCAN 0
#endif

#define SEED 0x9E3779B97F4A7C15ull
#define LOW_BITS 0x0101010101010101ull
#define HIGH_BITS 0x8080808080808080ull

typedef struct {
    uint64_t tag;    /* the bytes of a short word, or the hash of a long one */
    uint64_t count;  /* 0: the slot is free */
    uint64_t offset; /* offset of the word in the arena */
    uint64_t length;
} Slot;

typedef struct {
    PyObject_HEAD
    Slot *slots;
    uint64_t capacity; /* a power of two */
    uint64_t num_words;
    unsigned char *arena;
    uint64_t arena_used, arena_size;
} WordTable;

enum { OK = 0, NO_MEMORY = 1, TOO_MANY = 2 };

static inline int is_separator(unsigned char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

static inline uint64_t scramble(uint64_t x) {
    x *= 0xBF58476D1CE4E5B9ull;
    return x ^ (x >> 32);
}

static uint64_t hash_long(const unsigned char *word, uint64_t length) {
    uint64_t hash = length * SEED, piece;
    while (length >= 8) {
        memcpy(&piece, word, 8);
        hash = scramble(hash ^ piece) * SEED;
        word += 8;
        length -= 8;
    }
    if (length) {
        piece = 0;
        memcpy(&piece, word, length);
        hash = scramble(hash ^ piece) * SEED;
    }
    return hash;
}

static inline uint64_t home(uint64_t tag, uint64_t length, uint64_t capacity) {
    return scramble((tag + length) * SEED) & (capacity - 1);
}

static int grow_slots(WordTable *table) {
    uint64_t capacity = table->capacity * 2;
    if (capacity > SIZE_MAX / sizeof(Slot)) return NO_MEMORY;
    Slot *slots = calloc(capacity, sizeof(Slot));
    if (!slots) return NO_MEMORY;
    for (uint64_t i = 0; i < table->capacity; i++) {
        Slot *slot = &table->slots[i];
        if (!slot->count) continue;
        uint64_t at = home(slot->tag, slot->length, capacity);
        while (slots[at].count) at = (at + 1) & (capacity - 1);
        slots[at] = *slot;
    }
    free(table->slots);
    table->slots = slots;
    table->capacity = capacity;
    return OK;
}

static int keep_word(WordTable *table, const unsigned char *word, uint64_t length, uint64_t *offset) {
    if (length > table->arena_size - table->arena_used) {
        uint64_t size = table->arena_size * 2;
        if (size < table->arena_used + length) size = table->arena_used + length;
        unsigned char *arena = realloc(table->arena, size);
        if (!arena) return NO_MEMORY;
        table->arena = arena;
        table->arena_size = size;
    }
    memcpy(table->arena + table->arena_used, word, length);
    *offset = table->arena_used;
    table->arena_used += length;
    return OK;
}

static inline int count_word(WordTable *table, const unsigned char *word, uint64_t length, uint64_t tag, uint64_t count) {
    uint64_t at = home(tag, length, table->capacity);
    for (;;) {
        Slot *slot = &table->slots[at];
        if (!slot->count) break;
        if (slot->tag == tag && slot->length == length &&
            (length <= 8 || memcmp(table->arena + slot->offset, word, length) == 0)) {
            if (slot->count > UINT64_MAX - count) return TOO_MANY;
            slot->count += count;
            return OK;
        }
        at = (at + 1) & (table->capacity - 1);
    }
    if (table->num_words + 1 > table->capacity / 8 * 5) {
        if (grow_slots(table)) return NO_MEMORY;
        at = home(tag, length, table->capacity);
        while (table->slots[at].count) at = (at + 1) & (table->capacity - 1);
    }
    uint64_t offset;
    if (keep_word(table, word, length, &offset)) return NO_MEMORY;
    table->slots[at] = (Slot){tag, count, offset, length};
    table->num_words++;
    return OK;
}

static uint64_t tag_of(const unsigned char *word, uint64_t length) {
    uint64_t tag = 0;
    if (length > 8) return hash_long(word, length);
    memcpy(&tag, word, length);
    return tag;
}

#if WIDE_SCAN
/* Returns a word with the high bit set in every byte that is a separator; exact for all bytes, not only the first. */
static inline uint64_t separators(uint64_t x) {
    uint64_t low7 = x & ~HIGH_BITS, found;
#define DIFFERS(c) (((low7 ^ (LOW_BITS * (c))) + ~HIGH_BITS) | x)
    found = DIFFERS(' ') & DIFFERS('\t') & DIFFERS('\n') & DIFFERS('\r');
#undef DIFFERS
    return ~found & HIGH_BITS;
}
#endif

static int count_buffer(WordTable *table, const unsigned char *at, const unsigned char *end) {
    int failed;
#if WIDE_SCAN
    while (end - at >= 16) {
        uint64_t piece, marks;
        if (is_separator(*at)) {
            at++;
            continue;
        }
        memcpy(&piece, at, 8);
        marks = separators(piece);
        if (marks) {
            unsigned length = (unsigned)__builtin_ctzll(marks) >> 3; /* 1 to 7: the first byte is not a separator */
            uint64_t tag = piece & ((1ull << (8 * length)) - 1);
            if ((failed = count_word(table, at, length, tag, 1))) return failed;
            at += length + 1;
            continue;
        }
        const unsigned char *stop = at + 8;
        while (end - stop >= 8) {
            memcpy(&piece, stop, 8);
            marks = separators(piece);
            if (marks) {
                stop += (unsigned)__builtin_ctzll(marks) >> 3;
                goto found;
            }
            stop += 8;
        }
        while (stop < end && !is_separator(*stop)) stop++;
    found:
        if ((failed = count_word(table, at, (uint64_t)(stop - at), tag_of(at, (uint64_t)(stop - at)), 1))) return failed;
        at = stop;
    }
#endif
    while (at < end) {
        if (is_separator(*at)) {
            at++;
            continue;
        }
        const unsigned char *stop = at + 1;
        while (stop < end && !is_separator(*stop)) stop++;
        if ((failed = count_word(table, at, (uint64_t)(stop - at), tag_of(at, (uint64_t)(stop - at)), 1))) return failed;
        at = stop;
    }
    return OK;
}

static int raise_failure(int failed) {
    if (failed == NO_MEMORY) PyErr_NoMemory();
    if (failed == TOO_MANY) PyErr_SetString(PyExc_OverflowError, "a word count does not fit into 64 bits");
    return failed;
}

/* Adds rows of `word TAB digits LF` up to the first row of another form, and returns where that row begins. */
static int merge_rows(WordTable *table, const unsigned char *start, const unsigned char *end, const unsigned char **stopped) {
    const unsigned char *at = start;
    int failed = OK;
    for (;; at = *stopped) {
        *stopped = at;
        const unsigned char *stop = at == end ? NULL : memchr(at, '\n', (size_t)(end - at));
        const unsigned char *tab = stop ? memchr(at, '\t', (size_t)(stop - at)) : NULL;
        if (!tab || tab == at || tab + 1 == stop) return OK;
        uint64_t count = 0;
        for (const unsigned char *digit = tab + 1; digit < stop; digit++) {
            if (*digit < '0' || *digit > '9' || count > (UINT64_MAX - (uint64_t)(*digit - '0')) / 10) return OK;
            count = count * 10 + (uint64_t)(*digit - '0');
        }
        uint64_t length = (uint64_t)(tab - at);
        if (!count) return OK;
        if ((failed = count_word(table, at, length, tag_of(at, length), count))) return failed;
        *stopped = stop + 1;
    }
}

/* Counts the words of a buffer, or adds its rows. Returns the number of bytes read, or -1 if an error is set. */
static Py_ssize_t take_buffer(WordTable *table, PyObject *argument, int is_rows) {
    Py_buffer buffer;
    if (PyObject_GetBuffer(argument, &buffer, PyBUF_SIMPLE)) return -1;
    const unsigned char *start = buffer.buf, *end = start + buffer.len, *stopped = end;
    int failed = is_rows ? merge_rows(table, start, end, &stopped) : count_buffer(table, start, end);
    PyBuffer_Release(&buffer);
    return raise_failure(failed) ? -1 : stopped - start;
}

static PyObject *table_update(WordTable *table, PyObject *argument) {
    if (take_buffer(table, argument, 0) < 0) return NULL;
    Py_RETURN_NONE;
}

static PyObject *table_merge(WordTable *table, PyObject *argument) {
    Py_ssize_t taken = take_buffer(table, argument, 1);
    return taken < 0 ? NULL : PyLong_FromSsize_t(taken);
}

/* Fields of a slot that sorting needs. */
typedef struct {
    const unsigned char *word;
    uint64_t length, count;
    uint64_t prefix; /* the first 8 bytes, in the order of the comparison */
} Row;

static uint64_t prefix_of(const unsigned char *word, uint64_t length) {
    uint64_t prefix = 0;
    for (unsigned i = 0; i < 8; i++) prefix = prefix << 8 | (i < length ? word[i] : 0);
    return prefix;
}

static int compare_bytes(const void *a, const void *b) {
    const Row *x = a, *y = b;
    if (x->prefix != y->prefix) return x->prefix < y->prefix ? -1 : 1;
    int order = memcmp(x->word, y->word, x->length < y->length ? x->length : y->length);
    if (order) return order;
    return (x->length > y->length) - (x->length < y->length);
}

static int compare_counts(const void *a, const void *b) {
    const Row *x = a, *y = b;
    if (x->count != y->count) return x->count > y->count ? -1 : 1;
    return compare_bytes(a, b);
}

static void swap_nibbles(WordTable *table) {
    for (uint64_t i = 0; i < table->arena_used; i++) table->arena[i] = (unsigned char)(table->arena[i] << 4 | table->arena[i] >> 4);
}

static unsigned write_number(char *text, uint64_t number) {
    char reversed[20];
    unsigned length = 0;
    do reversed[length++] = (char)('0' + number % 10);
    while (number /= 10);
    for (unsigned i = 0; i < length; i++) text[i] = reversed[length - 1 - i];
    return length;
}

static int write_rows(const Row *rows, uint64_t num_rows, PyObject *write) {
    enum { PIECE = 1 << 20 };
    uint64_t done = 0;
    while (done < num_rows) {
        uint64_t stop = done, size = 0;
        while (stop < num_rows && (size == 0 || size < PIECE)) size += rows[stop++].length + 22;
        PyObject *piece = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size);
        if (!piece) return -1;
        char *start = PyBytes_AS_STRING(piece), *at = start;
        for (; done < stop; done++) {
            memcpy(at, rows[done].word, rows[done].length);
            at += rows[done].length;
            *at++ = '\t';
            at += write_number(at, rows[done].count);
            *at++ = '\n';
        }
        if (_PyBytes_Resize(&piece, at - start)) return -1;
        PyObject *result = PyObject_CallOneArg(write, piece);
        Py_DECREF(piece);
        if (!result) return -1;
        Py_DECREF(result);
    }
    return 0;
}

static PyObject *table_dump(WordTable *table, PyObject *arguments) {
    PyObject *write;
    const char *order;
    if (!PyArg_ParseTuple(arguments, "Os", &write, &order)) return NULL;
    int by_count = !strcmp(order, "count"), swapped = !strcmp(order, "sabertooth");
    if (!by_count && !swapped && strcmp(order, "bytes"))
        return PyErr_Format(PyExc_ValueError, "order %s is not one of count, bytes, sabertooth", order);
    Row *rows = malloc((table->num_words + 1) * sizeof(Row));
    if (!rows) return PyErr_NoMemory();
    if (swapped) swap_nibbles(table);
    uint64_t num_rows = 0, total = 0;
    for (uint64_t i = 0; i < table->capacity; i++) {
        const Slot *slot = &table->slots[i];
        if (!slot->count) continue;
        total += slot->count;
        const unsigned char *word = table->arena + slot->offset;
        rows[num_rows++] = (Row){word, slot->length, slot->count, prefix_of(word, slot->length)};
    }
    qsort(rows, num_rows, sizeof(Row), by_count ? compare_counts : compare_bytes);
    if (swapped) swap_nibbles(table); /* swap them back */
    int failed = write_rows(rows, num_rows, write);
    free(rows);
    return failed ? NULL : PyLong_FromUnsignedLongLong(total);
}

static PyObject *table_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords) {
    (void)arguments, (void)keywords;
    WordTable *table = (WordTable *)type->tp_alloc(type, 0);
    if (!table) return NULL;
    table->capacity = 1 << 12;
    table->arena_size = 1 << 16;
    table->slots = calloc(table->capacity, sizeof(Slot));
    table->arena = malloc(table->arena_size);
    if (!table->slots || !table->arena) {
        Py_DECREF(table);
        return PyErr_NoMemory();
    }
    return (PyObject *)table;
}

static void table_dealloc(WordTable *table) {
    PyTypeObject *type = Py_TYPE(table);
    free(table->slots);
    free(table->arena);
    type->tp_free((PyObject *)table);
    Py_DECREF(type);
}

static Py_ssize_t table_length(WordTable *table) { return (Py_ssize_t)table->num_words; }

static PyObject *table_num_bytes(WordTable *table, void *closure) {
    (void)closure;
    return PyLong_FromUnsignedLongLong(table->capacity * sizeof(Slot) + table->arena_size);
}

static PyMethodDef table_methods[] = {
    {"update", (PyCFunction)table_update, METH_O, "Counts the words of a bytes-like object, as if it were a whole text."},
    {"merge", (PyCFunction)table_merge, METH_O,
     "Adds rows of word TAB count LF, up to the first that is not of that form; gives the bytes it took."},
    {"dump", (PyCFunction)table_dump, METH_VARARGS,
     "dump(write, order): gives word TAB count LF rows to write(bytes), in pieces; returns the sum of the counts."},
    {NULL, NULL, 0, NULL}};

static PyGetSetDef table_properties[] = {
    {"num_bytes", (getter)table_num_bytes, NULL, "Memory the table takes.", NULL},
    {NULL, NULL, NULL, NULL, NULL}};

static PyType_Slot table_slots[] = {{Py_tp_new, table_new},
                                    {Py_tp_dealloc, table_dealloc},
                                    {Py_tp_methods, table_methods},
                                    {Py_tp_getset, table_properties},
                                    {Py_sq_length, table_length},
                                    {Py_tp_doc, "Counts of words; see the head of _words.c."},
                                    {0, NULL}};

static PyType_Spec table_spec = {"pretrainkit.corpus._words.WordTable", sizeof(WordTable), 0, Py_TPFLAGS_DEFAULT, table_slots};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_words", "Word counts of bytes.", -1, NULL, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__words(void) {
    PyObject *made = PyModule_Create(&module), *type;
    if (!made) return NULL;
    type = PyType_FromSpec(&table_spec);
    if (!type || PyModule_AddObject(made, "WordTable", type)) {
        Py_XDECREF(type);
        Py_DECREF(made);
        return NULL;
    }
    return made;
}
