/* What each commit writes, in C for compiled builds: the records that `OffsetCommits.append_to` of records.py appends, and
 * the one that `one_change` of journal.py packs. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#include "../../protocol/native/put.h"

#define TOPIC_ID_BYTES 16

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

/* (first offset delta, group id, topic, topic id, numbers) -> records, the same from the length of the key on, how many
 * bytes of a key are before the partition, and the columns of the journal: partitions, and offsets with leader epochs.
 * The numbers of each offset: partition, offset, leader epoch, time. */
static PyObject *offset_records(PyObject *module, PyObject *const *arguments, Py_ssize_t count) {
    static const int bits[] = {32, 64, 32, 64};
    static const char no_id[TOPIC_ID_BYTES];
    Text group, topic, topic_id;
    int64_t first, row[4];
    Py_ssize_t rows, key_start_size, key_size, value_size, behind_size, size = 0;
    PyObject *numbers, *records = NULL, *behind = NULL, *partitions = NULL, *positions = NULL, *result = NULL;
    char *place, *behind_place, *partition_place, *position_place;
    if (count != 5 || !PyList_CheckExact(arguments[4])) {
        PyErr_SetString(PyExc_TypeError, "offset_records takes 5 arguments, of which the last is a list");
        return NULL;
    }
    if (number_of(arguments[0], 32, &first) < 0 || text_of(arguments[1], &group) < 0 ||
        text_of(arguments[2], &topic) < 0 || topic_id_of(arguments[3], &topic_id) < 0)
        return NULL;
    numbers = arguments[4];
    rows = PyList_GET_SIZE(numbers) / 4;
    int has_id = memcmp(topic_id.bytes, no_id, TOPIC_ID_BYTES) != 0;
    key_start_size = 2 + 2 + group.size + 2 + topic.size;
    key_size = key_start_size + 4;
    value_size = 2 + 8 + 4 + 1 + 8 + (has_id ? 3 + TOPIC_ID_BYTES : 1);
    behind_size = varint_size(key_size) + key_size + varint_size(value_size) + value_size + 1;
    for (Py_ssize_t i = 0; i < rows; i++) {
        Py_ssize_t of_one = 2 + varint_size(first + i) + behind_size;
        size += varint_size(of_one) + of_one;
    }
    if ((records = PyBytes_FromStringAndSize(NULL, size)) == NULL ||
        (behind = PyBytes_FromStringAndSize(NULL, rows * behind_size)) == NULL ||
        (partitions = PyBytes_FromStringAndSize(NULL, rows * 4)) == NULL ||
        (positions = PyBytes_FromStringAndSize(NULL, rows * 12)) == NULL)
        goto ended;
    place = PyBytes_AS_STRING(records);
    behind_place = PyBytes_AS_STRING(behind);
    partition_place = PyBytes_AS_STRING(partitions);
    position_place = PyBytes_AS_STRING(positions);
    for (Py_ssize_t i = 0; i < rows; i++) {
        char *begin;
        for (int j = 0; j < 4; j++)
            if (number_of(PyList_GET_ITEM(numbers, 4 * i + j), bits[j], &row[j]) < 0)
                goto ended;
        place = put_varint(place, 2 + varint_size(first + i) + behind_size);
        place = put(place, 0, 2); /* attributes, timestamp delta */
        place = begin = put_varint(place, first + i);
        place = put_varint(place, key_size);
        place = put(place, 1, 2); /* version of the key */
        place = put_text(put_text(place, &group), &topic);
        place = put(place, row[0], 4);
        partition_place = put_bytes(partition_place, place - 4, 4);
        place = put_varint(place, value_size);
        place = put(place, 4, 2); /* version of the value */
        place = put(put(place, row[1], 8), row[2], 4);
        position_place = put_bytes(position_place, place - 12, 12);
        place = put(place, 1, 1); /* no metadata */
        place = put(place, row[3], 8);
        if (has_id)
            place = put_bytes(put_bytes(place, "\1\0\20", 3), topic_id.bytes, TOPIC_ID_BYTES);
        else
            place = put(place, 0, 1);
        place = put(place, 0, 1); /* no headers */
        behind_place = put_bytes(behind_place, begin, behind_size);
    }
    result = Py_BuildValue("OOnOO", records, behind, key_start_size, partitions, positions);
ended:
    Py_XDECREF(records);
    Py_XDECREF(behind);
    Py_XDECREF(partitions);
    Py_XDECREF(positions);
    return result;
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

static PyMethodDef functions[] = {
    {"offset_records", (PyCFunction)(void (*)(void))offset_records, METH_FASTCALL, "The records of a commit."},
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
