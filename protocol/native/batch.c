/* Batches: what `PlainRecords.add`, `assemble_plain`, `patch` and most of `check_lengths` of record_batch.py do. */

#include "plan.h"
#include "put.h"
#include <string.h>

#define PREFIX_BYTES 12 /* base offset and length */
#define LEADER_EPOCH_AT 12
#define CRC_AT 17
#define ATTRIBUTES_AT 21
#define HEADER_BYTES 61
#define MAGIC 2

/* (offset delta, key, value or None) -> record */
PyObject *plain_record(PyObject *module, PyObject *const *arguments, Py_ssize_t count) {
    char *key, *value = NULL, *place;
    Py_ssize_t key_size, value_size = -1, size;
    long long delta;
    PyObject *record;
    if (count != 3) {
        PyErr_SetString(PyExc_TypeError, "plain_record takes 3 arguments");
        return NULL;
    }
    delta = PyLong_AsLongLong(arguments[0]);
    if ((delta == -1 && PyErr_Occurred()) || PyBytes_AsStringAndSize(arguments[1], &key, &key_size) < 0 ||
        (arguments[2] != Py_None && PyBytes_AsStringAndSize(arguments[2], &value, &value_size) < 0))
        return NULL;
    size = 2 + varint_size(delta) + varint_size(key_size) + key_size + varint_size(value_size) + 1;
    size += value == NULL ? 0 : value_size;
    if ((record = PyBytes_FromStringAndSize(NULL, varint_size(size) + size)) == NULL)
        return NULL;
    place = put(put_varint(PyBytes_AS_STRING(record), size), 0, 2); /* attributes, timestamp delta */
    place = put_varint(put_varint(place, delta), key_size);
    memcpy(place, key, key_size);
    place = put_varint(place + key_size, value_size);
    if (value != NULL) {
        memcpy(place, value, value_size);
        place += value_size;
    }
    put(place, 0, 1); /* no headers */
    return record;
}

/* Write the checksum of a batch. */
static int set_crc(char *batch, Py_ssize_t size) {
    PyObject *view = PyMemoryView_FromMemory(batch + ATTRIBUTES_AT, size - ATTRIBUTES_AT, PyBUF_READ), *crc = NULL;
    unsigned long number = (unsigned long)-1;
    if (view != NULL && (crc = PyObject_CallOneArg(names.crc32c, view)) != NULL)
        number = PyLong_AsUnsignedLong(crc);
    Py_XDECREF(view);
    Py_XDECREF(crc);
    if (number == (unsigned long)-1 && PyErr_Occurred())
        return -1;
    put(batch + CRC_AT, number, 4);
    return 0;
}

/* (parts, record count, timestamp, attributes, producer id, producer epoch, base sequence) -> batch */
PyObject *assemble_plain(PyObject *module, PyObject *const *arguments, Py_ssize_t argument_count) {
    PyObject *parts, *batch;
    long long numbers[6], count, timestamp;
    Py_ssize_t size = HEADER_BYTES;
    char *place;
    if (argument_count != 7 || !PyList_CheckExact(arguments[0])) {
        PyErr_SetString(PyExc_TypeError, "assemble_plain takes a list and six numbers");
        return NULL;
    }
    parts = arguments[0];
    for (int i = 0; i < 6; i++) {
        numbers[i] = PyLong_AsLongLong(arguments[1 + i]);
        if (numbers[i] == -1 && PyErr_Occurred())
            return NULL;
    }
    count = numbers[0];
    timestamp = numbers[1];
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(parts); i++) {
        if (!PyBytes_Check(PyList_GET_ITEM(parts, i)))
            return PyErr_Format(PyExc_TypeError, "%R is no part of a batch", PyList_GET_ITEM(parts, i));
        size += PyBytes_GET_SIZE(PyList_GET_ITEM(parts, i));
    }
    if ((batch = PyByteArray_FromStringAndSize(NULL, size)) == NULL)
        return NULL;
    place = put(PyByteArray_AS_STRING(batch), 0, 8); /* base offset */
    place = put(place, size - PREFIX_BYTES, 4);
    place = put(put(place, -1, 4), MAGIC, 1); /* no leader epoch yet */
    place = put(put(place, 0, 4), numbers[2], 2); /* no checksum yet; attributes */
    place = put(place, count - 1, 4); /* last offset delta */
    place = put(put(place, timestamp, 8), timestamp, 8);
    place = put(put(put(place, numbers[3], 8), numbers[4], 2), numbers[5], 4); /* producer id, epoch, base sequence */
    place = put(place, count, 4);
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(parts); i++) {
        PyObject *part = PyList_GET_ITEM(parts, i);
        memcpy(place, PyBytes_AS_STRING(part), PyBytes_GET_SIZE(part));
        place += PyBytes_GET_SIZE(part);
    }
    if (set_crc(PyByteArray_AS_STRING(batch), size) < 0)
        Py_CLEAR(batch);
    return batch;
}

/* (buffer, position, base offset, leader epoch): a batch gets its place in the log */
PyObject *patch(PyObject *module, PyObject *const *arguments, Py_ssize_t count) {
    Py_buffer buffer;
    Py_ssize_t position;
    long long base_offset, leader_epoch;
    if (count != 4) {
        PyErr_SetString(PyExc_TypeError, "patch takes 4 arguments");
        return NULL;
    }
    if (((position = PyLong_AsSsize_t(arguments[1])) == -1 && PyErr_Occurred()) ||
        ((base_offset = PyLong_AsLongLong(arguments[2])) == -1 && PyErr_Occurred()) ||
        ((leader_epoch = PyLong_AsLongLong(arguments[3])) == -1 && PyErr_Occurred()) ||
        PyObject_GetBuffer(arguments[0], &buffer, PyBUF_WRITABLE) < 0)
        return NULL;
    if (position < 0 || buffer.len - position < LEADER_EPOCH_AT + 4 || leader_epoch != (int32_t)leader_epoch) {
        PyErr_SetString(PyExc_ValueError, "no batch is there, or its epoch has no room");
        PyBuffer_Release(&buffer);
        return NULL;
    }
    put((char *)buffer.buf + position, base_offset, 8);
    put((char *)buffer.buf + position + LEADER_EPOCH_AT, leader_epoch, 4);
    PyBuffer_Release(&buffer);
    Py_RETURN_NONE;
}

/* (data, position) -> how many records fill it from there to its end, by their lengths; -1: none fill it, or one is very
 * long */
PyObject *count_records(PyObject *module, PyObject *const *arguments, Py_ssize_t count) {
    Py_buffer data;
    Py_ssize_t position;
    long found = 0;
    if (count != 2) {
        PyErr_SetString(PyExc_TypeError, "count_records takes 2 arguments");
        return NULL;
    }
    if (((position = PyLong_AsSsize_t(arguments[1])) == -1 && PyErr_Occurred()) ||
        PyObject_GetBuffer(arguments[0], &data, PyBUF_SIMPLE) < 0)
        return NULL;
    while (position >= 0 && position < data.len) {
        uint32_t length = 0, byte = 0x80;
        for (int shift = 0; (byte & 0x80) && shift <= 21 && position < data.len; shift += 7) {
            byte = ((const uint8_t *)data.buf)[position++];
            length |= (byte & 0x7F) << shift;
        }
        if ((byte & 0x80) || (length & 1) || (Py_ssize_t)(length >> 1) > data.len - position)
            break;
        position += length >> 1;
        found++;
        if (position == data.len) {
            PyBuffer_Release(&data);
            return PyLong_FromLong(found);
        }
    }
    PyBuffer_Release(&data);
    return PyLong_FromLong(-1);
}
