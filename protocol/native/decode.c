/* Decoding.
 *
 * The bytes come from the network. So each read is checked against the end first (`has`, `take_length`, `read_text`,
 * `read_array`), and a length or count is compared with the bytes that are left before memory is taken.
 */

#include "plan.h"
#include <string.h>

typedef struct {
    const unsigned char *bytes;
    Py_ssize_t position, end;
    PyObject *view;    /* the memoryview that `records` are slices of */
    PyObject *message; /* its name, for errors */
} Reader;

static int has(Reader *reader, Py_ssize_t size) {
    if (size <= reader->end - reader->position)
        return 1;
    PyErr_Format(names.protocol_error, "%U ends too early", reader->message);
    return 0;
}

static void raise_short(PyObject *name) {
    PyErr_Format(names.protocol_error, "%U is longer than the bytes that are left", name);
}

static uint64_t big_endian(const unsigned char *bytes, int size) {
    uint64_t value = 0;
    for (int i = 0; i < size; i++)
        value = value << 8 | bytes[i];
    return value;
}

static int read_unsigned(Reader *reader, uint32_t *value) {
    uint64_t found = 0;
    for (int i = 0; i < 5; i++) {
        unsigned char byte;
        if (reader->position >= reader->end) {
            PyErr_SetString(names.protocol_error, "a variable-length integer runs past the end");
            return 0;
        }
        byte = reader->bytes[reader->position++];
        found |= (uint64_t)(byte & 0x7F) << (7 * i);
        if (byte < 0x80) {
            *value = (uint32_t)found;
            return 1;
        }
    }
    PyErr_SetString(names.protocol_error, "a variable-length integer is too long");
    return 0;
}

/* Read a length or count; -1 means null. Returns 0 with an exception. */
static int take_length(Reader *reader, Field *field, int is_flexible, Py_ssize_t *length) {
    int is_string = field->kind == STRING && !field->is_array;
    if (is_flexible) {
        uint32_t more;
        if (!has(reader, 1))
            return 0;
        more = reader->bytes[reader->position];
        if (more <= 127)
            reader->position++;
        else {
            if (!read_unsigned(reader, &more))
                return 0;
            if (is_string && (Py_ssize_t)more > names.string_bytes_max + 1) {
                PyErr_Format(names.protocol_error, "a string of %zd bytes", (Py_ssize_t)more - 1);
                return 0;
            }
        }
        *length = (Py_ssize_t)more - 1;
    } else {
        int size = is_string ? 2 : 4;
        if (!has(reader, size))
            return 0;
        *length = is_string ? (Py_ssize_t)(int16_t)big_endian(reader->bytes + reader->position, 2)
                            : (Py_ssize_t)(int32_t)big_endian(reader->bytes + reader->position, 4);
        if (*length < 0)
            *length = -1;
        reader->position += size;
    }
    if (*length < 0 && !field->is_nullable) {
        PyErr_Format(names.protocol_error, "%U must not be null", field->name);
        return 0;
    }
    return 1;
}

/* A value of fixed width. The caller has checked that its bytes are there. */
static PyObject *read_fixed(const unsigned char *bytes, int kind) {
    switch (kind) {
    case BOOL:
        return PyBool_FromLong(bytes[0]);
    case INT8:
        return PyLong_FromLong((int8_t)bytes[0]);
    case INT16:
        return PyLong_FromLong((int16_t)big_endian(bytes, 2));
    case INT32:
        return PyLong_FromLong((int32_t)big_endian(bytes, 4));
    case INT64:
        return PyLong_FromLongLong((int64_t)big_endian(bytes, 8));
    case UINT16:
        return PyLong_FromLong((uint16_t)big_endian(bytes, 2));
    case UINT32:
        return PyLong_FromUnsignedLong((uint32_t)big_endian(bytes, 4));
    case FLOAT64: {
        uint64_t bits = big_endian(bytes, 8);
        double value;
        memcpy(&value, &bits, 8);
        return PyFloat_FromDouble(value);
    }
    default:
        assert(kind == UUID);
        return PyBytes_FromStringAndSize((const char *)bytes, 16);
    }
}

/* A string, bytes or records of a length. */
static PyObject *read_text(Reader *reader, Field *field, Py_ssize_t length) {
    const char *bytes = (const char *)reader->bytes + reader->position;
    Py_ssize_t begin = reader->position;
    if (length > reader->end - begin) {
        raise_short(field->name);
        return NULL;
    }
    reader->position += length;
    if (field->kind == STRING)
        return PyUnicode_DecodeUTF8(bytes, length, "barnabas.replace");
    if (field->kind == BYTES)
        return PyBytes_FromStringAndSize(bytes, length);
    return PySequence_GetSlice(reader->view, begin, begin + length);
}

static PyObject *read_structure_value(Reader *reader, Structure *structure);

static PyObject *read_array(Reader *reader, Field *field, Py_ssize_t count, int is_flexible) {
    PyObject *items;
    int is_fixed = field->kind <= UUID;
    int size = is_fixed ? fixed_size(field->kind) : 0;
    if (count > (reader->end - reader->position) / (is_fixed ? size : field->minimum_bytes)) {
        raise_short(field->name);
        return NULL;
    }
    if (field->is_read) {
        items = rows_of(field, is_flexible, (const char *)reader->bytes + reader->position, count);
        if (items != Py_None) {
            reader->position += items == NULL ? 0 : count * field->row_bytes;
            return items;
        }
        Py_DECREF(items);
    }
    items = PyList_New(0); /* filled by appending, because the collector may show it to others */
    if (items == NULL)
        return NULL;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *item = NULL;
        if (is_fixed) {
            item = read_fixed(reader->bytes + reader->position, field->kind);
            reader->position += size;
        } else if (field->kind == STRUCTURE)
            item = read_structure_value(reader, field->inner);
        else {
            Field element = *field;
            Py_ssize_t length;
            element.is_array = element.is_nullable = 0;
            if (take_length(reader, &element, is_flexible, &length))
                item = read_text(reader, &element, length);
        }
        if (item == NULL || PyList_Append(items, item) < 0) {
            Py_XDECREF(item);
            Py_DECREF(items);
            return NULL;
        }
        Py_DECREF(item);
    }
    return items;
}

static PyObject *read_field(Reader *reader, Field *field, int is_flexible) {
    if (field->is_array || field->kind == STRING || field->kind == BYTES || field->kind == RECORDS) {
        Py_ssize_t length;
        if (!take_length(reader, field, is_flexible, &length))
            return NULL;
        if (length < 0)
            return Py_NewRef(Py_None);
        return field->is_array ? read_array(reader, field, length, is_flexible) : read_text(reader, field, length);
    }
    if (field->kind == STRUCTURE) {
        if (field->is_nullable) { /* null is 0 if tagged, else negative */
            int marker;
            if (!has(reader, 1))
                return NULL;
            marker = reader->bytes[reader->position++];
            if (field->is_tagged ? marker == 0 : marker > 127)
                return Py_NewRef(Py_None);
        }
        return read_structure_value(reader, field->inner);
    }
    if (!has(reader, fixed_size(field->kind)))
        return NULL;
    reader->position += fixed_size(field->kind);
    return read_fixed(reader->bytes + reader->position - fixed_size(field->kind), field->kind);
}

static void set_slot(PyObject *object, Py_ssize_t offset, PyObject *value) {
    PyObject *before = SLOT(object, offset);
    SLOT(object, offset) = value; /* the reference is the slot's now */
    Py_XDECREF(before);
}

static int set_fallbacks(PyObject *object, Fields *fields) {
    for (Py_ssize_t i = 0; i < fields->count; i++) {
        Field *field = &fields->fields[i];
        PyObject *value = field->fallback_kind == IS_LIST ? PyList_New(0) : Py_NewRef(field->fallback);
        if (value == NULL)
            return -1;
        set_slot(object, field->offset, value);
    }
    return 0;
}

static int read_tags(Reader *reader, Structure *structure, PyObject *object) {
    uint32_t count, tag, size;
    int64_t last = -1;
    PyObject *unknown = NULL;
    if (!has(reader, 1))
        return -1;
    if (reader->bytes[reader->position] == 0) {
        reader->position++;
        return 0;
    }
    if (!read_unsigned(reader, &count))
        return -1;
    if ((Py_ssize_t)count > names.unknown_tags_max) {
        PyErr_Format(names.protocol_error, "%u tagged fields in one structure", count);
        return -1;
    }
    if (structure->tagged.count == 0) {
        if ((unknown = PyDict_New()) == NULL)
            return -1;
        set_slot(object, structure->unknown_offset, unknown);
    }
    for (uint32_t i = 0; i < count; i++) {
        Field *known = NULL;
        Py_ssize_t stop;
        if (!read_unsigned(reader, &tag) || !read_unsigned(reader, &size))
            return -1;
        if ((int64_t)tag <= last) {
            PyErr_Format(names.protocol_error, "tagged field %u is repeated or out of order", tag);
            return -1;
        }
        if ((Py_ssize_t)size > reader->end - reader->position) {
            PyErr_SetString(names.protocol_error, "a tagged field is longer than the bytes that are left");
            return -1;
        }
        last = tag;
        stop = reader->position + size;
        for (Py_ssize_t j = 0; j < structure->tagged.count && known == NULL; j++)
            if (structure->tagged.fields[j].tag == tag)
                known = &structure->tagged.fields[j];
        if (known != NULL) {
            PyObject *value = read_field(reader, known, structure->is_flexible);
            if (value == NULL)
                return -1;
            set_slot(object, known->offset, value);
            if (reader->position != stop) {
                PyErr_Format(names.protocol_error, "the size given for %U is wrong", known->name);
                return -1;
            }
        } else {
            int result;
            PyObject *key, *value;
            if (unknown == NULL) {
                if ((unknown = PyDict_New()) == NULL)
                    return -1;
                set_slot(object, structure->unknown_offset, unknown);
            }
            key = PyLong_FromUnsignedLong(tag);
            value = PyBytes_FromStringAndSize((const char *)reader->bytes + reader->position, size);
            result = key == NULL || value == NULL ? -1 : PyDict_SetItem(unknown, key, value);
            Py_XDECREF(key);
            Py_XDECREF(value);
            if (result < 0)
                return -1;
            reader->position = stop;
        }
    }
    return 0;
}

static PyObject *read_structure_value(Reader *reader, Structure *structure) {
    PyObject *object = structure->type->tp_alloc(structure->type, 0);
    if (object == NULL)
        return NULL;
    SLOT(object, structure->unknown_offset) = Py_NewRef(Py_None);
    if (set_fallbacks(object, &structure->absent) < 0 || set_fallbacks(object, &structure->tagged) < 0)
        goto failed;
    for (Py_ssize_t i = 0; i < structure->present.count; i++) {
        Field *field = &structure->present.fields[i];
        PyObject *value = read_field(reader, field, structure->is_flexible);
        if (value == NULL)
            goto failed;
        SLOT(object, field->offset) = value;
    }
    if (structure->is_flexible && read_tags(reader, structure, object) < 0)
        goto failed;
    return object;
failed:
    Py_DECREF(object);
    return NULL;
}

/* (buffer, position) -> (message, position) */
PyObject *decode(Codec *codec, PyObject *const *arguments, size_t flags, PyObject *keywords) {
    Reader reader;
    Py_buffer buffer;
    PyObject *message, *result = NULL;
    if (PyVectorcall_NARGS(flags) != 2 || keywords != NULL) {
        PyErr_SetString(PyExc_TypeError, "a decoder takes a buffer and a position");
        return NULL;
    }
    reader.position = PyLong_AsSsize_t(arguments[1]);
    if (reader.position < 0) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_ValueError, "a negative position");
        return NULL;
    }
    if (PyObject_GetBuffer(arguments[0], &buffer, PyBUF_SIMPLE) < 0)
        return NULL;
    reader.bytes = buffer.buf;
    reader.end = buffer.len;
    reader.view = arguments[0];
    reader.message = codec->message;
    message = read_structure_value(&reader, codec->root);
    PyBuffer_Release(&buffer);
    if (message != NULL) {
        PyObject *position = PyLong_FromSsize_t(reader.position);
        result = position == NULL ? NULL : PyTuple_Pack(2, message, position);
        Py_XDECREF(position);
        Py_DECREF(message);
    }
    return result;
}

#define WITHOUT_CLIENT_ID 7 /* ControlledShutdown, in its first version */

/* A tuple of five new references, a third of the time of Py_BuildValue. */
static PyObject *five(PyObject *a, PyObject *b, PyObject *c, PyObject *d, PyObject *e) {
    PyObject *result = a && b && c && d && e ? PyTuple_Pack(5, a, b, c, d, e) : NULL;
    Py_XDECREF(a);
    Py_XDECREF(b);
    Py_XDECREF(c);
    Py_XDECREF(d);
    Py_XDECREF(e);
    return result;
}

/* (frame, API key -> first flexible version) -> API key, version, correlation id, client id, position of the body.
 * None: the header is none of those that nearly all requests have, or wrong; then frames.py reads it. */
PyObject *request_header(PyObject *module, PyObject *const *arguments, Py_ssize_t count) {
    Py_buffer frame;
    PyObject *key, *flexible, *client_id = NULL, *result = NULL;
    const unsigned char *bytes;
    Py_ssize_t position = 10;
    long flexible_since;
    int16_t api_key, api_version, length;
    if (count != 2) {
        PyErr_SetString(PyExc_TypeError, "request_header takes 2 arguments");
        return NULL;
    }
    if (PyObject_GetBuffer(arguments[0], &frame, PyBUF_SIMPLE) < 0)
        return NULL;
    bytes = frame.buf;
    if (frame.len < position)
        goto other;
    api_key = (int16_t)(bytes[0] << 8 | bytes[1]);
    api_version = (int16_t)(bytes[2] << 8 | bytes[3]);
    length = (int16_t)(bytes[8] << 8 | bytes[9]);
    if ((key = PyLong_FromLong(api_key)) == NULL)
        goto failed;
    flexible = PyDict_GetItemWithError(arguments[1], key);
    Py_DECREF(key);
    if (flexible == NULL) {
        if (PyErr_Occurred())
            goto failed;
        goto other;
    }
    flexible_since = PyLong_AsLong(flexible);
    if (length < 0 || position + length >= frame.len || (api_key == WITHOUT_CLIENT_ID && api_version == 0))
        goto other;
    position += length;
    if (api_version >= flexible_since && bytes[position++] != 0)
        goto other;
    client_id = PyUnicode_DecodeUTF8((const char *)bytes + 10, length, "barnabas.replace");
    if (client_id != NULL)
        result = five(PyLong_FromLong(api_key), PyLong_FromLong(api_version),
                      PyLong_FromLong((int32_t)((uint32_t)bytes[4] << 24 | bytes[5] << 16 | bytes[6] << 8 | bytes[7])),
                      client_id, PyLong_FromSsize_t(position));
failed:
    PyBuffer_Release(&frame);
    return result;
other:
    PyBuffer_Release(&frame);
    Py_RETURN_NONE;
}
