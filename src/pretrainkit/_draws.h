/* The draws of `pretrainkit.rng` for the compiled parts: draw number `turn` of a key is mix(key + (turn + 1) * golden). */
#ifndef PRETRAINKIT_DRAWS_H
#define PRETRAINKIT_DRAWS_H

#include <stdint.h>

static inline uint64_t draw_bits(uint64_t key, uint64_t turn) {
    uint64_t z = key + (turn + 1) * 0x9E3779B97F4A7C15ull;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}

#endif
