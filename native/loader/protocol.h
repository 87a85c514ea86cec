/* Written by python -m egpu.loader.protocol; do not edit. */
#pragma once

#include <stdint.h>

#define EGPU_LOADER_MAGIC 0x4c554745u
#define EGPU_LOADER_VERSION 1u
#define EGPU_LOADER_SIZE_LIMIT 1073741824u
#define EGPU_LOADER_NAME_SIZE 16
#define EGPU_LOADER_LICENSE_SIZE 64

enum egpu_loader_op {
    EGPU_OP_HELLO = 1,
    EGPU_OP_MAP_CREATE = 2,
    EGPU_OP_PROG_LOAD = 3,
    EGPU_OP_LINK = 4,
    EGPU_OP_UNLINK = 5,
    EGPU_OP_LOOKUP = 6,
    EGPU_OP_UPDATE = 7,
    EGPU_OP_DELETE = 8,
    EGPU_OP_NEXT_KEY = 9,
    EGPU_OP_TAKE = 10,
    EGPU_OP_FREEZE = 11,
    EGPU_OP_RECORDS = 12,
};

struct egpu_loader_request {
    uint32_t magic;
    uint16_t version;
    uint16_t op;
    uint32_t object;
    uint32_t size;
    uint64_t a;
    uint64_t b;
};
_Static_assert(sizeof(struct egpu_loader_request) == 32, "layout");

struct egpu_loader_reply {
    uint32_t magic;
    uint16_t version;
    uint16_t op;
    uint32_t error;
    uint32_t size;
    uint64_t value;
};
_Static_assert(sizeof(struct egpu_loader_reply) == 24, "layout");

struct egpu_loader_map {
    uint32_t type;
    uint32_t key_size;
    uint32_t value_size;
    uint32_t max_entries;
    uint32_t flags;
    uint32_t reserved;
};
_Static_assert(sizeof(struct egpu_loader_map) == 24, "layout");
