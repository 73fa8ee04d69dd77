/* What each commit writes, in C for compiled builds: the records that `OffsetCommits.append_to` of records.py appends, and
 * the one that `one_change` of journal.py packs. And what stored.py takes out of such records. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#include "../../protocol/native/put.h"

#define TOPIC_ID_BYTES 16
#define PARTITION_BYTES 4
#define POSITION_BYTES 12 /* offset, leader epoch */

typedef struct {
    const char *bytes;
    Py_ssize_t size;
} Text;

/* The UTF-8 of a string whose length is to be written in 16 bits. */
static int text_of(PyObject *value, Text *text) {
    text->bytes = PyUnicode_Check(value) ? PyUnicode_AsUTF8AndSize(value, &text->size) : NULL;
    if (text->bytes == NULL) {
        if (!PyErr_Occurred())
            PyErr_Format(PyExc_TypeError, "%R is no string", value);
        return -1;
    }
    if (text->size <= INT16_MAX)
        return 0;
    PyErr_SetString(PyExc_ValueError, "a string of more than 32,767 bytes");
    return -1;
}

static int bytes_of(PyObject *value, Text *text) {
    return PyBytes_AsStringAndSize(value, (char **)&text->bytes, &text->size);
}

static int topic_id_of(PyObject *value, Text *topic_id) {
    if (bytes_of(value, topic_id) < 0)
        return -1;
    if (topic_id->size == TOPIC_ID_BYTES)
        return 0;
    PyErr_SetString(PyExc_ValueError, "a topic id that has not 16 bytes");
    return -1;
}

static int number_of(PyObject *value, int bits, int64_t *number) {
    *number = PyLong_AsLongLong(value);
    if (*number == -1 && PyErr_Occurred())
        return -1;
    if (bits == 64 || (*number >= -((int64_t)1 << (bits - 1)) && *number < ((int64_t)1 << (bits - 1))))
        return 0;
    PyErr_Format(PyExc_ValueError, "%R has more than %d bits", value, bits);
    return -1;
}

static char *put_bytes(char *place, const void *bytes, Py_ssize_t size) {
    memcpy(place, bytes, size);
    return place + size;
}

static char *put_text(char *place, const Text *text) {
    return put_bytes(put(place, text->size, 2), text->bytes, text->size);
}

/* What the records of one topic share. */
typedef struct {
    Text group, topic, topic_id;
    int64_t time;
    int has_id;
    Py_ssize_t key_size, value_size, behind_size; /* the last: from the length of the key on */
} Shared;

static int read_shared(PyObject *group, PyObject *topic, PyObject *topic_id, PyObject *time, Shared *shared) {
    static const char no_id[TOPIC_ID_BYTES];
    if (text_of(group, &shared->group) < 0 || text_of(topic, &shared->topic) < 0 ||
        topic_id_of(topic_id, &shared->topic_id) < 0 || number_of(time, 64, &shared->time) < 0)
        return -1;
    shared->has_id = memcmp(shared->topic_id.bytes, no_id, TOPIC_ID_BYTES) != 0;
    shared->key_size = 2 + 2 + shared->group.size + 2 + shared->topic.size + PARTITION_BYTES;
    shared->value_size = 2 + POSITION_BYTES + 1 + 8 + (shared->has_id ? 3 + TOPIC_ID_BYTES : 1);
    shared->behind_size = varint_size(shared->key_size) + shared->key_size + varint_size(shared->value_size) +
                          shared->value_size + 1;
    return 0;
}

static Py_ssize_t record_size(const Shared *shared, int64_t delta) {
    Py_ssize_t size = 2 + varint_size(delta) + shared->behind_size;
    return varint_size(size) + size;
}

static char *put_record(char *place, const Shared *shared, int64_t delta, const char *partition, const char *position) {
    place = put_varint(place, 2 + varint_size(delta) + shared->behind_size);
    place = put(place, 0, 2); /* attributes, timestamp delta */
    place = put_varint(place, delta);
    place = put_varint(place, shared->key_size);
    place = put(place, 1, 2); /* version of the key */
    place = put_text(put_text(place, &shared->group), &shared->topic);
    place = put_bytes(place, partition, PARTITION_BYTES);
    place = put_varint(place, shared->value_size);
    place = put(place, 4, 2); /* version of the value */
    place = put_bytes(place, position, POSITION_BYTES);
    place = put(place, 1, 1); /* no metadata */
    place = put(place, shared->time, 8);
    if (shared->has_id)
        place = put_bytes(put_bytes(place, "\1\0\20", 3), shared->topic_id.bytes, TOPIC_ID_BYTES);
    else
        place = put(place, 0, 1);
    return put(place, 0, 1); /* no headers */
}

/* (first offset delta, group id, topic, topic id, partitions, positions, time) -> records, the same from the length of
 * the key on, and how many bytes of a key are before the partition. */
static PyObject *offset_records(PyObject *module, PyObject *const *arguments, Py_ssize_t count) {
    Shared shared;
    Text partitions, positions;
    int64_t first;
    Py_ssize_t rows, size = 0;
    PyObject *records, *behind, *result = NULL;
    char *place, *behind_place;
    if (count != 7) {
        PyErr_SetString(PyExc_TypeError, "offset_records takes 7 arguments");
        return NULL;
    }
    if (number_of(arguments[0], 32, &first) < 0 ||
        read_shared(arguments[1], arguments[2], arguments[3], arguments[6], &shared) < 0 ||
        bytes_of(arguments[4], &partitions) < 0 || bytes_of(arguments[5], &positions) < 0)
        return NULL;
    rows = partitions.size / PARTITION_BYTES;
    if (partitions.size != rows * PARTITION_BYTES || positions.size != rows * POSITION_BYTES) {
        PyErr_SetString(PyExc_ValueError, "columns that do not belong together");
        return NULL;
    }
    for (Py_ssize_t i = 0; i < rows; i++)
        size += record_size(&shared, first + i);
    records = PyBytes_FromStringAndSize(NULL, size);
    behind = PyBytes_FromStringAndSize(NULL, rows * shared.behind_size);
    if (records != NULL && behind != NULL) {
        place = PyBytes_AS_STRING(records);
        behind_place = PyBytes_AS_STRING(behind);
        for (Py_ssize_t i = 0; i < rows; i++) {
            place = put_record(place, &shared, first + i, partitions.bytes + i * PARTITION_BYTES,
                               positions.bytes + i * POSITION_BYTES);
            behind_place = put_bytes(behind_place, place - shared.behind_size, shared.behind_size);
        }
        result = Py_BuildValue("OOn", records, behind, shared.key_size - PARTITION_BYTES);
    }
    Py_XDECREF(records);
    Py_XDECREF(behind);
    return result;
}

/* (offset delta, group id, topic, topic id, partition, offset, leader epoch, time) -> record */
static PyObject *offset_record(PyObject *module, PyObject *const *arguments, Py_ssize_t count) {
    Shared shared;
    int64_t delta, partition, offset, leader_epoch;
    char partition_bytes[PARTITION_BYTES], position[POSITION_BYTES];
    PyObject *record;
    if (count != 8) {
        PyErr_SetString(PyExc_TypeError, "offset_record takes 8 arguments");
        return NULL;
    }
    if (number_of(arguments[0], 32, &delta) < 0 ||
        read_shared(arguments[1], arguments[2], arguments[3], arguments[7], &shared) < 0 ||
        number_of(arguments[4], 32, &partition) < 0 || number_of(arguments[5], 64, &offset) < 0 ||
        number_of(arguments[6], 32, &leader_epoch) < 0 ||
        (record = PyBytes_FromStringAndSize(NULL, record_size(&shared, delta))) == NULL)
        return NULL;
    put(partition_bytes, partition, 4);
    put(put(position, offset, 8), leader_epoch, 4);
    put_record(PyBytes_AS_STRING(record), &shared, delta, partition_bytes, position);
    return record;
}

/* (origin, position, time, topic, topic id, partition, old offset and leader epoch, new ones) -> value */
static PyObject *one_change(PyObject *module, PyObject *const *arguments, Py_ssize_t count) {
    static const int bits[] = {32, 64, 32, 64, 32};
    Text origin, topic, topic_id;
    int64_t position, time, row[5];
    PyObject *value;
    char *place;
    if (count != 10) {
        PyErr_SetString(PyExc_TypeError, "one_change takes 10 arguments");
        return NULL;
    }
    if (bytes_of(arguments[0], &origin) < 0 || number_of(arguments[1], 64, &position) < 0 ||
        number_of(arguments[2], 64, &time) < 0 || text_of(arguments[3], &topic) < 0 ||
        topic_id_of(arguments[4], &topic_id) < 0)
        return NULL;
    for (int i = 0; i < 5; i++)
        if (number_of(arguments[5 + i], bits[i], &row[i]) < 0)
            return NULL;
    value = PyBytes_FromStringAndSize(NULL, 20 + origin.size + 2 + topic.size + TOPIC_ID_BYTES + 4 + 28 + 4);
    if (value == NULL)
        return NULL;
    place = put(PyBytes_AS_STRING(value), 0, 1); /* version */
    place = put(place, 1, 1);                    /* changes */
    place = put(place, 1, 2);                    /* of one topic */
    place = put(put(place, position, 8), time, 8);
    place = put_bytes(place, origin.bytes, origin.size);
    place = put_text(place, &topic);
    place = put_bytes(place, topic_id.bytes, TOPIC_ID_BYTES);
    place = put(place, 1, 4); /* one partition */
    for (int i = 0; i < 5; i++)
        place = put(place, row[i], bits[i] / 8);
    put(place, 0, 4); /* no texts */
    return value;
}

/* The place of a partition among records, searched from `from` on; -1: it is not there. Mostly it is the next one. */
static Py_ssize_t find(const char *partition, const char *records, Py_ssize_t size, Py_ssize_t count, Py_ssize_t from) {
    for (Py_ssize_t i = from; i < count; i++)
        if (memcmp(records + i * size, partition, PARTITION_BYTES) == 0)
            return i;
    for (Py_ssize_t i = 0; i < from; i++)
        if (memcmp(records + i * size, partition, PARTITION_BYTES) == 0)
            return i;
    return -1;
}

/* (records, their size, places of partition and position in them, partitions, end) -> rows, as in stored.py */
static PyObject *found_rows(PyObject *module, PyObject *const *arguments, Py_ssize_t argument_count) {
    Text records, end;
    int64_t size, partition_at, offset_at, partition;
    Py_ssize_t count, rows, next = 0;
    PyObject *asked, *result;
    char *place;
    if (argument_count != 6) {
        PyErr_SetString(PyExc_TypeError, "found_rows takes 6 arguments");
        return NULL;
    }
    if (bytes_of(arguments[0], &records) < 0 || number_of(arguments[1], 32, &size) < 0 ||
        number_of(arguments[2], 32, &partition_at) < 0 || number_of(arguments[3], 32, &offset_at) < 0 ||
        bytes_of(arguments[5], &end) < 0)
        return NULL;
    if (size < 1 || records.size % size != 0 || partition_at < 0 || partition_at + PARTITION_BYTES > size ||
        offset_at < 0 || offset_at + POSITION_BYTES > size) {
        PyErr_SetString(PyExc_ValueError, "no such records");
        return NULL;
    }
    if ((asked = PySequence_Tuple(arguments[4])) == NULL)
        return NULL;
    count = records.size / size;
    rows = PyTuple_GET_SIZE(asked);
    result = PyBytes_FromStringAndSize(NULL, rows * (PARTITION_BYTES + POSITION_BYTES + end.size));
    if (result == NULL) {
        Py_DECREF(asked);
        return NULL;
    }
    place = PyBytes_AS_STRING(result);
    for (Py_ssize_t i = 0; i < rows; i++) {
        Py_ssize_t at;
        if (number_of(PyTuple_GET_ITEM(asked, i), 32, &partition) < 0) {
            Py_CLEAR(result);
            break;
        }
        put(place, partition, PARTITION_BYTES);
        at = find(place, records.bytes + partition_at, size, count, next);
        place += PARTITION_BYTES;
        if (at < 0)
            memset(place, 0xFF, POSITION_BYTES); /* no offset, no leader epoch */
        else {
            memcpy(place, records.bytes + at * size + offset_at, POSITION_BYTES);
            next = at + 1;
        }
        place = put_bytes(place + POSITION_BYTES, end.bytes, end.size);
    }
    Py_DECREF(asked);
    return result;
}

static int is_like(const char *record, const char *other, const char *mask, Py_ssize_t size) {
    uint64_t different = 0, words[3];
    Py_ssize_t i = 0;
    for (; i + 8 <= size; i += 8) {
        memcpy(&words[0], record + i, 8);
        memcpy(&words[1], other + i, 8);
        memcpy(&words[2], mask + i, 8);
        different |= (words[0] ^ words[1]) & words[2];
    }
    for (; i < size; i++)
        different |= (uint8_t)((record[i] ^ other[i]) & mask[i]);
    return !different;
}

/* (data, position, template, in layout, in run) -> where those records end that are, from there on, like the template in
 * the bits of the layout, and like the first of them in those of the run: as in stored.py */
static PyObject *run_end(PyObject *module, PyObject *const *arguments, Py_ssize_t count) {
    Text data, template, in_layout, in_run;
    int64_t position;
    const char *place, *first, *end;
    if (count != 5) {
        PyErr_SetString(PyExc_TypeError, "run_end takes 5 arguments");
        return NULL;
    }
    if (bytes_of(arguments[0], &data) < 0 || number_of(arguments[1], 64, &position) < 0 ||
        bytes_of(arguments[2], &template) < 0 || bytes_of(arguments[3], &in_layout) < 0 ||
        bytes_of(arguments[4], &in_run) < 0)
        return NULL;
    if (position < 0 || position > data.size || template.size < 1 || in_layout.size != template.size ||
        in_run.size != template.size) {
        PyErr_SetString(PyExc_ValueError, "no such records");
        return NULL;
    }
    place = first = data.bytes + position;
    end = data.bytes + data.size;
    if (end - place >= template.size && is_like(place, template.bytes, in_layout.bytes, template.size))
        do
            place += template.size;
        while (end - place >= template.size && is_like(place, first, in_run.bytes, template.size));
    return PyLong_FromSsize_t(place - data.bytes);
}

static PyMethodDef functions[] = {
    {"offset_records", (PyCFunction)(void (*)(void))offset_records, METH_FASTCALL, "The records of a topic."},
    {"offset_record", (PyCFunction)(void (*)(void))offset_record, METH_FASTCALL, "The record of an offset."},
    {"found_rows", (PyCFunction)(void (*)(void))found_rows, METH_FASTCALL, "As in offsets/stored.py."},
    {"run_end", (PyCFunction)(void (*)(void))run_end, METH_FASTCALL, "As in offsets/stored.py."},
    {"one_change", (PyCFunction)(void (*)(void))one_change, METH_FASTCALL, "As in offsets/journal.py."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "native_packing",
    .m_doc = "What each commit writes.",
    .m_size = -1,
    .m_methods = functions,
};

PyMODINIT_FUNC PyInit_native_packing(void) { return PyModule_Create(&definition); }
