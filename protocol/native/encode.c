/* Encoding: into memory of its own, which is appended to the given bytearray at the end. */

#include "plan.h"
#include <string.h>

#define AT_ONCE_BYTES 2048

typedef struct {
    char *bytes;
    Py_ssize_t size, room;
    char at_once[AT_ONCE_BYTES]; /* most answers fit in here */
} Memory;

typedef struct {
    Memory *memory;
    PyObject *out;   /* the bytearray that the bytes go into */
    PyObject *parts; /* the list for large records */
    Codec *codec;
} Writer;

static void begin_memory(Memory *memory) {
    memory->bytes = memory->at_once;
    memory->size = 0;
    memory->room = AT_ONCE_BYTES;
}

static void end_memory(Memory *memory) {
    if (memory->bytes != memory->at_once)
        PyMem_Free(memory->bytes);
}

/* The place for that many bytes more; NULL with an exception. */
static char *take(Writer *writer, Py_ssize_t size) {
    Memory *memory = writer->memory;
    char *place;
    if (size > memory->room - memory->size) {
        Py_ssize_t room = memory->room;
        char *bytes;
        do {
            if (room > PY_SSIZE_T_MAX / 2) {
                PyErr_NoMemory();
                return NULL;
            }
            room *= 2;
        } while (size > room - memory->size);
        bytes = PyMem_Realloc(memory->bytes == memory->at_once ? NULL : memory->bytes, room);
        if (bytes == NULL) {
            PyErr_NoMemory();
            return NULL;
        }
        if (memory->bytes == memory->at_once)
            memcpy(bytes, memory->at_once, memory->size);
        memory->bytes = bytes;
        memory->room = room;
    }
    place = memory->bytes + memory->size;
    memory->size += size;
    return place;
}

static int put(Writer *writer, const void *bytes, Py_ssize_t size) {
    char *place = take(writer, size);
    if (place == NULL)
        return -1;
    memcpy(place, bytes, size);
    return 0;
}

static int put_number(Writer *writer, uint64_t value, int size) {
    char *place = take(writer, size);
    if (place == NULL)
        return -1;
    for (int i = size - 1; i >= 0; i--) {
        place[i] = (char)value;
        value >>= 8;
    }
    return 0;
}

static int put_unsigned(Writer *writer, uint64_t value) {
    unsigned char bytes[10];
    int size = 0;
    while (value > 0x7F) {
        bytes[size++] = (unsigned char)(value & 0x7F) | 0x80;
        value >>= 7;
    }
    bytes[size++] = (unsigned char)value;
    return put(writer, bytes, size);
}

/* Append what was written so far to `out`. */
static int pour(Writer *writer) {
    Memory *memory = writer->memory;
    Py_ssize_t before = PyByteArray_GET_SIZE(writer->out);
    if (PyByteArray_Resize(writer->out, before + memory->size) < 0)
        return -1;
    memcpy(PyByteArray_AS_STRING(writer->out) + before, memory->bytes, memory->size);
    memory->size = 0;
    return 0;
}

/* ------------------------------------------------------------------ values */

/* The value of a field, a new reference. An object of another class is asked by name. */
static PyObject *value_of(PyObject *object, Structure *structure, Field *field) {
    if (Py_IS_TYPE(object, structure->type)) {
        PyObject *value = SLOT(object, field->offset);
        if (value != NULL)
            return Py_NewRef(value);
    }
    return PyObject_GetAttr(object, field->name);
}

static int put_integer(Writer *writer, Field *field, PyObject *value, int64_t least, int64_t most) {
    int overflow = 0;
    long long number;
    if (PyLong_Check(value))
        number = PyLong_AsLongLongAndOverflow(value, &overflow);
    else {
        PyObject *index = PyNumber_Index(value);
        if (index == NULL) {
            if (PyErr_ExceptionMatches(PyExc_TypeError))
                PyErr_Format(names.struct_error, "%U is no integer: %R", field->name, value);
            return -1;
        }
        number = PyLong_AsLongLongAndOverflow(index, &overflow);
        Py_DECREF(index);
    }
    if (number == -1 && PyErr_Occurred())
        return -1;
    if (overflow || number < least || number > most) {
        PyErr_Format(names.struct_error, "%U is out of range: %R", field->name, value);
        return -1;
    }
    return put_number(writer, (uint64_t)number, fixed_size(field->kind));
}

static int put_fixed(Writer *writer, Field *field, PyObject *value) {
    switch (field->kind) {
    case BOOL: {
        int is_true = PyObject_IsTrue(value);
        return is_true < 0 ? -1 : put_number(writer, is_true, 1);
    }
    case INT8:
        return put_integer(writer, field, value, INT8_MIN, INT8_MAX);
    case INT16:
        return put_integer(writer, field, value, INT16_MIN, INT16_MAX);
    case INT32:
        return put_integer(writer, field, value, INT32_MIN, INT32_MAX);
    case INT64:
        return put_integer(writer, field, value, INT64_MIN, INT64_MAX);
    case UINT16:
        return put_integer(writer, field, value, 0, UINT16_MAX);
    case UINT32:
        return put_integer(writer, field, value, 0, UINT32_MAX);
    case FLOAT64: {
        double number = PyFloat_AsDouble(value);
        uint64_t bits;
        if (number == -1.0 && PyErr_Occurred()) {
            if (PyErr_ExceptionMatches(PyExc_TypeError))
                PyErr_Format(names.struct_error, "%U is no number: %R", field->name, value);
            return -1;
        }
        memcpy(&bits, &number, 8);
        return put_number(writer, bits, 8);
    }
    default: { /* UUID */
        char *place;
        Py_ssize_t size;
        assert(field->kind == UUID);
        if (!PyBytes_Check(value)) {
            PyErr_Format(names.struct_error, "%U is not of bytes: %R", field->name, value);
            return -1;
        }
        size = PyBytes_GET_SIZE(value);
        if ((place = take(writer, 16)) == NULL)
            return -1;
        memset(place, 0, 16);
        memcpy(place, PyBytes_AS_STRING(value), size < 16 ? size : 16);
        return 0;
    }
    }
}

/* Write a length or count; -1 means null. */
static int put_length(Writer *writer, Field *field, int is_flexible, Py_ssize_t length) {
    int is_string = field->kind == STRING && !field->is_array;
    if (is_flexible) {
        if (is_string && length > names.string_bytes_max) {
            PyErr_Format(PyExc_ValueError, "a string of %zd bytes, where %zd are allowed", length,
                         names.string_bytes_max);
            return -1;
        }
        return put_unsigned(writer, (uint64_t)(length + 1));
    }
    if (length > (is_string ? INT16_MAX : INT32_MAX)) {
        PyErr_Format(names.struct_error, "%U is out of range: it has a length of %zd", field->name, length);
        return -1;
    }
    return put_number(writer, (uint64_t)length, is_string ? 2 : 4);
}

static int put_string(Writer *writer, Field *field, PyObject *value, int is_flexible) {
    int result = -1;
    PyObject *encoded = NULL, *cut = NULL;
    if (!PyUnicode_Check(value)) {
        PyErr_Format(PyExc_AttributeError, "%U is no string: %R", field->name, value);
        return -1;
    }
    if (field->is_message && PyUnicode_GET_LENGTH(value) > names.message_characters_max) {
        if ((cut = PyUnicode_Substring(value, 0, names.message_characters_max)) == NULL)
            return -1;
        value = cut;
    }
    if (PyUnicode_IS_COMPACT_ASCII(value)) {
        Py_ssize_t length = PyUnicode_GET_LENGTH(value);
        if (put_length(writer, field, is_flexible, length) == 0)
            result = put(writer, PyUnicode_1BYTE_DATA(value), length);
    } else if ((encoded = PyUnicode_AsUTF8String(value)) != NULL) {
        Py_ssize_t length = PyBytes_GET_SIZE(encoded);
        if (put_length(writer, field, is_flexible, length) == 0)
            result = put(writer, PyBytes_AS_STRING(encoded), length);
    }
    Py_XDECREF(encoded);
    Py_XDECREF(cut);
    return result;
}

static int put_buffer(Writer *writer, Field *field, PyObject *value, int is_flexible) {
    int result = -1;
    Py_buffer buffer;
    if (PyObject_GetBuffer(value, &buffer, PyBUF_SIMPLE) < 0)
        return -1;
    if (put_length(writer, field, is_flexible, buffer.len) == 0)
        result = put(writer, buffer.buf, buffer.len);
    PyBuffer_Release(&buffer);
    return result;
}

/* Large records are a part of their own, which may stand for bytes that are not in memory. */
static int put_records(Writer *writer, Field *field, PyObject *value, int is_flexible) {
    PyObject *out;
    Py_ssize_t length = PyObject_Size(value);
    if (length < 0)
        return -1;
    if (length < names.by_reference_bytes)
        return put_buffer(writer, field, value, is_flexible);
    if (put_length(writer, field, is_flexible, length) < 0 || pour(writer) < 0 ||
        PyList_Append(writer->parts, writer->out) < 0 || PyList_Append(writer->parts, value) < 0 ||
        (out = PyByteArray_FromStringAndSize(NULL, 0)) == NULL)
        return -1;
    Py_SETREF(writer->out, out);
    return 0;
}

/* ------------------------------------------------------------------ structures */

static int put_structure(Writer *writer, Structure *structure, PyObject *object);

static int put_element(Writer *writer, Field *field, PyObject *item, int is_flexible) {
    if (field->kind == STRUCTURE)
        return put_structure(writer, field->inner, item);
    if (field->kind == UUID) {
        Py_buffer buffer;
        int result;
        if (PyObject_GetBuffer(item, &buffer, PyBUF_SIMPLE) < 0)
            return -1;
        result = put(writer, buffer.buf, buffer.len);
        PyBuffer_Release(&buffer);
        return result;
    }
    if (field->kind < UUID)
        return put_fixed(writer, field, item);
    Field element = *field;
    element.is_array = 0;
    return field->kind == STRING ? put_string(writer, &element, item, is_flexible)
                                 : put_buffer(writer, &element, item, is_flexible);
}

static int put_array(Writer *writer, Field *field, PyObject *value, int is_flexible) {
    int result;
    PyObject *items;
    if (is_rows(value, field)) {
        PyObject *data = SLOT(value, names.rows_data);
        Py_ssize_t count = PyLong_AsSsize_t(SLOT(value, names.rows_count));
        if ((count == -1 && PyErr_Occurred()) || put_length(writer, field, is_flexible, count) < 0)
            return -1;
        return put(writer, PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data));
    }
    items = PySequence_Fast(value, "an array is no sequence");
    if (items == NULL)
        return -1;
    result = put_length(writer, field, is_flexible, PySequence_Fast_GET_SIZE(items));
    /* The size is asked each time: code that an element runs might change the list. */
    for (Py_ssize_t i = 0; result == 0 && i < PySequence_Fast_GET_SIZE(items); i++) {
        PyObject *item = Py_NewRef(PySequence_Fast_GET_ITEM(items, i));
        result = put_element(writer, field, item, is_flexible);
        Py_DECREF(item);
    }
    Py_DECREF(items);
    return result;
}

static int put_field(Writer *writer, Field *field, PyObject *value, int is_flexible) {
    if (field->kind == STRUCTURE && !field->is_array) {
        if (field->is_nullable) {
            int is_null = value == Py_None;
            if (put_number(writer, is_null ? (field->is_tagged ? 0 : 255) : 1, 1) < 0)
                return -1;
            if (is_null)
                return 0;
        }
        return put_structure(writer, field->inner, value);
    }
    if (field->kind <= UUID && !field->is_array)
        return put_fixed(writer, field, value);
    if (value == Py_None && field->is_nullable)
        return put_length(writer, field, is_flexible, -1);
    if (field->is_array)
        return put_array(writer, field, value, is_flexible);
    if (field->kind == STRING)
        return put_string(writer, field, value, is_flexible);
    return field->kind == RECORDS ? put_records(writer, field, value, is_flexible)
                                  : put_buffer(writer, field, value, is_flexible);
}

/* Whether a value is not the default of its field; -1 with an exception. */
static int differs(Field *field, PyObject *value) {
    if (field->fallback_kind == IS_NONE)
        return value != Py_None;
    if (field->fallback_kind == IS_SHARED && value == field->fallback)
        return 0;
    if (field->fallback_kind == IS_LIST && PyList_CheckExact(value))
        return PyList_GET_SIZE(value) != 0;
    return PyObject_RichCompareBool(value, field->fallback, Py_NE);
}

/* A tagged field as bytes; NULL with an exception. */
static PyObject *tagged_bytes(Writer *writer, Field *field, PyObject *value) {
    Memory memory;
    Writer inner = {&memory, writer->out, writer->parts, writer->codec};
    PyObject *bytes = NULL;
    begin_memory(&memory);
    if (put_field(&inner, field, value, 1) == 0)
        bytes = PyBytes_FromStringAndSize(memory.bytes, memory.size);
    end_memory(&memory);
    return bytes;
}

/* Add the tagged fields that are to be written; `tags` is a new dictionary then. */
static int collect_tags(Writer *writer, Structure *structure, PyObject *object, PyObject **tags) {
    for (Py_ssize_t i = 0; i < structure->tagged.count; i++) {
        Field *field = &structure->tagged.fields[i];
        PyObject *tag = NULL, *bytes = NULL, *value = value_of(object, structure, field);
        int is_written = value == NULL ? -1 : field->is_always ? 1 : differs(field, value);
        if (is_written > 0 && ((*tags == NULL && (*tags = PyDict_New()) == NULL) ||
                               (tag = PyLong_FromUnsignedLong(field->tag)) == NULL ||
                               (bytes = tagged_bytes(writer, field, value)) == NULL ||
                               PyDict_SetItem(*tags, tag, bytes) < 0))
            is_written = -1;
        Py_XDECREF(tag);
        Py_XDECREF(bytes);
        Py_XDECREF(value);
        if (is_written < 0)
            return -1;
    }
    return 0;
}

/* The tagged fields, in most messages none. `write_tags` puts them in order with those that are not known here. */
static int put_tags(Writer *writer, Structure *structure, PyObject *object) {
    int result = -1;
    PyObject *tags = NULL, *done = NULL, *bytes = NULL;
    PyObject *unknown = Py_IS_TYPE(object, structure->type) && SLOT(object, structure->unknown_offset) != NULL
                            ? Py_NewRef(SLOT(object, structure->unknown_offset))
                            : PyObject_GetAttr(object, names.unknown_tagged_fields);
    int has_unknown = unknown == NULL ? -1 : PyObject_IsTrue(unknown);
    if (has_unknown > 0 && (tags = PyDict_Copy(unknown)) == NULL)
        has_unknown = -1;
    if (has_unknown >= 0 && collect_tags(writer, structure, object, &tags) == 0) {
        if (tags == NULL)
            result = put_number(writer, 0, 1);
        else if ((bytes = PyByteArray_FromStringAndSize(NULL, 0)) != NULL &&
                 (done = PyObject_CallFunctionObjArgs(names.write_tags, bytes, tags, NULL)) != NULL)
            result = put(writer, PyByteArray_AS_STRING(bytes), PyByteArray_GET_SIZE(bytes));
    }
    Py_XDECREF(unknown);
    Py_XDECREF(tags);
    Py_XDECREF(done);
    Py_XDECREF(bytes);
    return result;
}

static int put_structure(Writer *writer, Structure *structure, PyObject *object) {
    int is_flexible = structure->is_flexible;
    for (Py_ssize_t i = 0; i < structure->lacking.count; i++) {
        Field *field = &structure->lacking.fields[i];
        PyObject *value = value_of(object, structure, field);
        int is_lacking = value == NULL ? -1 : differs(field, value);
        Py_XDECREF(value);
        if (is_lacking > 0)
            PyErr_Format(names.version_error, "%U has no %U in version %d", writer->codec->message, field->name,
                         writer->codec->version);
        if (is_lacking)
            return -1;
    }
    for (Py_ssize_t i = 0; i < structure->present.count; i++) {
        Field *field = &structure->present.fields[i];
        PyObject *value = value_of(object, structure, field);
        int result = value == NULL ? -1 : put_field(writer, field, value, is_flexible);
        Py_XDECREF(value);
        if (result < 0)
            return -1;
    }
    return is_flexible ? put_tags(writer, structure, object) : 0;
}

/* (message, out, parts) -> out */
PyObject *encode(Codec *codec, PyObject *const *arguments, size_t flags, PyObject *keywords) {
    Memory memory;
    Writer writer = {&memory, NULL, NULL, codec};
    int result;
    if (PyVectorcall_NARGS(flags) != 3 || keywords != NULL || !PyByteArray_CheckExact(arguments[1]) ||
        !PyList_CheckExact(arguments[2])) {
        PyErr_SetString(PyExc_TypeError, "an encoder takes a message, a bytearray and a list");
        return NULL;
    }
    writer.out = Py_NewRef(arguments[1]);
    writer.parts = arguments[2];
    begin_memory(&memory);
    result = put_structure(&writer, codec->root, arguments[0]);
    if (result == 0)
        result = pour(&writer);
    end_memory(&memory);
    if (result == 0)
        return writer.out;
    Py_DECREF(writer.out);
    return NULL;
}

/* (message, correlation id, whether the header may have tags) -> the parts of a whole response frame */
PyObject *encode_frame(Codec *codec, PyObject *const *arguments, Py_ssize_t count) {
    Memory memory;
    Writer writer = {&memory, NULL, NULL, codec};
    PyObject *first = NULL;
    Py_ssize_t size = -4;
    long correlation_id;
    int result = -1;
    if (count != 3) {
        PyErr_SetString(PyExc_TypeError, "frame takes a message, a number and a truth value");
        return NULL;
    }
    correlation_id = PyLong_AsLong(arguments[1]);
    if ((correlation_id == -1 && PyErr_Occurred()) || (writer.parts = PyList_New(0)) == NULL ||
        (writer.out = PyByteArray_FromStringAndSize(NULL, 0)) == NULL)
        goto ended;
    first = Py_NewRef(writer.out);
    begin_memory(&memory);
    if (put_number(&writer, 0, 4) == 0 && put_number(&writer, correlation_id, 4) == 0 &&
        (!codec->root->is_flexible || arguments[2] != Py_True || put_number(&writer, 0, 1) == 0) &&
        put_structure(&writer, codec->root, arguments[0]) == 0 && pour(&writer) == 0)
        result = PyList_Append(writer.parts, writer.out);
    end_memory(&memory);
    for (Py_ssize_t i = 0; result == 0 && i < PyList_GET_SIZE(writer.parts); i++) {
        Py_ssize_t part = PyObject_Size(PyList_GET_ITEM(writer.parts, i));
        result = part < 0 ? -1 : 0;
        size += part;
    }
    for (int i = 3; result == 0 && i >= 0; i--, size >>= 8)
        PyByteArray_AS_STRING(first)[i] = (char)size;
ended:
    if (result < 0)
        Py_CLEAR(writer.parts);
    Py_XDECREF(writer.out);
    Py_XDECREF(first);
    return writer.parts;
}
