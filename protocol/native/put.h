/* Numbers as bytes, as Kafka writes them: what is in C of protocol/ and of offsets/ writes with these. */

#ifndef BARNABAS_PUT_H
#define BARNABAS_PUT_H

#include <stdint.h>

/* The last `size` bytes of a number, the highest first. Returns the place behind them. */
static inline char *put(char *place, uint64_t number, int size) {
    for (int i = size - 1; i >= 0; i--) {
        place[i] = (char)number;
        number >>= 8;
    }
    return place + size;
}

/* A signed varint. */
static inline char *put_varint(char *place, int64_t number) {
    uint64_t left = ((uint64_t)number << 1) ^ (uint64_t)(number >> 63);
    for (; left > 0x7F; left >>= 7)
        *place++ = (char)(left | 0x80);
    *place++ = (char)left;
    return place;
}

static inline int varint_size(int64_t number) {
    char bytes[10];
    return (int)(put_varint(bytes, number) - bytes);
}

#endif
