/* Messages from bytes and to bytes: the twin of what compile.py and message.py write, for compiled builds.
 *
 * `Decoder(plan)(buffer, position) -> (message, position)` and `Encoder(plan)(message, out, parts) -> out` do and raise
 * what the functions of compile.py do and raise. A plan (protocol/plan.py) is the schema of one version as tuples. It is
 * read once into these structs. Then fields are read and set at the places of their slots, without a look-up by name.
 */

#ifndef BARNABAS_PLAN_H
#define BARNABAS_PLAN_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

typedef enum { BOOL, INT8, INT16, INT32, INT64, UINT16, UINT32, FLOAT64, UUID, STRING, BYTES, RECORDS, STRUCTURE } Kind;

/* How a default is made, and compared with. */
typedef enum { IS_NONE, IS_SHARED, IS_LIST, IS_VALUE } FallbackKind;

typedef struct Structure Structure;

typedef struct {
    PyObject *name;
    Py_ssize_t offset; /* of the slot */
    int kind;
    int is_array;
    int is_nullable;
    int is_tagged;
    int is_always;     /* a tagged field that is written even if it has its default */
    int is_message;    /* an error message: cut before it is written */
    unsigned int tag;
    int minimum_bytes; /* of an element of an array */
    PyObject *fallback; /* the default */
    int fallback_kind;
    Structure *inner;
    PyObject *layout;     /* of the elements of an array, if they may be Rows; else NULL */
    int is_read;          /* whether they are decoded so */
    Py_ssize_t row_bytes;
} Field;

typedef struct {
    Py_ssize_t count;
    Field *fields;
} Fields;

struct Structure {
    PyTypeObject *type;
    Py_ssize_t unknown_offset; /* of the slot unknown_tagged_fields */
    int is_flexible;
    Fields present; /* in the order of the wire */
    Fields tagged;  /* in the order of their tags */
    Fields absent;  /* those that the version lacks */
    Fields lacking; /* those of them that must have their default when a message is written */
};

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *message; /* its name */
    int version;
    Structure *root;
} Codec;

/* What protocol/ says, looked up when the module is imported. */
typedef struct {
    PyObject *protocol_error, *version_error, *struct_error;
    PyObject *write_tags, *crc32c;
    PyObject *unknown_tagged_fields; /* the name of the slot */
    PyTypeObject *rows;              /* Rows of rows.py, and its slots */
    Py_ssize_t rows_layout, rows_data, rows_count, rows_min;
    Py_ssize_t message_characters_max, by_reference_bytes, string_bytes_max, unknown_tags_max;
} Names;

extern Names names;

Structure *read_structure_plan(PyObject *plan);
void free_structure(Structure *structure);

Py_ssize_t slot_offset(PyTypeObject *type, PyObject *name);
void free_fields(Fields *fields);
PyObject *encode_frame(Codec *codec, PyObject *const *arguments, Py_ssize_t count);
PyObject *rows_of(Field *field, int is_flexible, const char *bytes, Py_ssize_t count);
int is_rows(PyObject *value, Field *field);
PyObject *cut(PyObject *module, PyObject *const *arguments, Py_ssize_t count);
PyObject *pad(PyObject *module, PyObject *const *arguments, Py_ssize_t count);
PyObject *request_header(PyObject *module, PyObject *const *arguments, Py_ssize_t count);
PyObject *construct_natively(PyObject *module, PyObject *arguments);
PyObject *plain_record(PyObject *module, PyObject *const *arguments, Py_ssize_t count);
PyObject *count_records(PyObject *module, PyObject *const *arguments, Py_ssize_t count);
PyObject *patch(PyObject *module, PyObject *const *arguments, Py_ssize_t count);
PyObject *assemble_plain(PyObject *module, PyObject *const *arguments, Py_ssize_t argument_count);

PyObject *decode(Codec *codec, PyObject *const *arguments, size_t flags, PyObject *keywords);
PyObject *encode(Codec *codec, PyObject *const *arguments, size_t flags, PyObject *keywords);

#define SLOT(object, offset) (*(PyObject **)((char *)(object) + (offset)))

static inline int fixed_size(int kind) {
    static const int sizes[] = {1, 1, 2, 4, 8, 2, 4, 8, 16};
    return sizes[kind];
}

#endif
