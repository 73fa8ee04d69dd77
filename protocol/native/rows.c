/* Rows that stay bytes, and their columns: what rows.py does. */

#include "plan.h"
#include <string.h>

/* Whether so many rows are of the layout: no text, no tagged fields. */
static int fit(const char *bytes, Py_ssize_t row_bytes, Py_ssize_t count, int is_flexible) {
    for (const char *last = bytes + row_bytes - 1; count > 0; count--, last += row_bytes)
        if (is_flexible ? (last[-1] & ~1) != 0 || *last != 0 : last[-1] != *last || (*last != 0 && *last != (char)-1))
            return 0;
    return 1;
}

/* So many rows, which are there, as Rows; None if some are not of the layout. */
PyObject *rows_of(Field *field, int is_flexible, const char *bytes, Py_ssize_t count) {
    PyObject *rows;
    if (count < names.rows_min || !fit(bytes, field->row_bytes, count, is_flexible))
        return Py_NewRef(Py_None);
    if ((rows = names.rows->tp_alloc(names.rows, 0)) == NULL)
        return NULL;
    SLOT(rows, names.rows_layout) = Py_NewRef(field->layout);
    if ((SLOT(rows, names.rows_data) = PyBytes_FromStringAndSize(bytes, count * field->row_bytes)) == NULL ||
        (SLOT(rows, names.rows_count) = PyLong_FromSsize_t(count)) == NULL)
        Py_CLEAR(rows);
    return rows;
}

/* Whether a value is Rows of the layout of this field. */
int is_rows(PyObject *value, Field *field) {
    return field->layout != NULL && Py_IS_TYPE(value, names.rows) && SLOT(value, names.rows_layout) == field->layout &&
           PyBytes_CheckExact(SLOT(value, names.rows_data)) && PyLong_CheckExact(SLOT(value, names.rows_count));
}

static int sizes_of(PyObject *const *arguments, Py_ssize_t count, Py_ssize_t expected, Py_ssize_t *sizes) {
    if (count != expected || !PyBytes_Check(arguments[0])) {
        PyErr_Format(PyExc_TypeError, "bytes and %zd sizes are expected", expected - 1);
        return -1;
    }
    for (Py_ssize_t i = 1; i < expected; i++) {
        sizes[i - 1] = PyLong_AsSsize_t(arguments[i]);
        if (sizes[i - 1] == -1 && PyErr_Occurred())
            return -1;
    }
    return 0;
}

/* (rows, size of a row, two sizes) -> two columns */
PyObject *cut(PyObject *module, PyObject *const *arguments, Py_ssize_t count) {
    Py_ssize_t sizes[3], rows;
    PyObject *first, *second, *result = NULL;
    const char *bytes;
    if (sizes_of(arguments, count, 4, sizes) < 0)
        return NULL;
    if (sizes[0] < 1 || sizes[1] < 0 || sizes[2] < 0 || sizes[1] > sizes[0] - sizes[2] ||
        PyBytes_GET_SIZE(arguments[0]) % sizes[0] != 0) {
        PyErr_SetString(PyExc_ValueError, "no such columns");
        return NULL;
    }
    bytes = PyBytes_AS_STRING(arguments[0]);
    rows = PyBytes_GET_SIZE(arguments[0]) / sizes[0];
    first = PyBytes_FromStringAndSize(NULL, rows * sizes[1]);
    second = PyBytes_FromStringAndSize(NULL, rows * sizes[2]);
    if (first != NULL && second != NULL) {
        for (Py_ssize_t i = 0; i < rows; i++, bytes += sizes[0]) {
            memcpy(PyBytes_AS_STRING(first) + i * sizes[1], bytes, sizes[1]);
            memcpy(PyBytes_AS_STRING(second) + i * sizes[2], bytes + sizes[1], sizes[2]);
        }
        result = PyTuple_Pack(2, first, second);
    }
    Py_XDECREF(first);
    Py_XDECREF(second);
    return result;
}

/* (column, size of a piece, size of a row) -> rows that begin with a piece, with zeros behind it */
PyObject *pad(PyObject *module, PyObject *const *arguments, Py_ssize_t count) {
    Py_ssize_t sizes[2], rows;
    PyObject *padded;
    if (sizes_of(arguments, count, 3, sizes) < 0)
        return NULL;
    if (sizes[0] < 1 || sizes[1] < sizes[0] || PyBytes_GET_SIZE(arguments[0]) % sizes[0] != 0) {
        PyErr_SetString(PyExc_ValueError, "no such column");
        return NULL;
    }
    rows = PyBytes_GET_SIZE(arguments[0]) / sizes[0];
    if (rows > PY_SSIZE_T_MAX / sizes[1])
        return PyErr_NoMemory();
    if ((padded = PyBytes_FromStringAndSize(NULL, rows * sizes[1])) == NULL)
        return NULL;
    memset(PyBytes_AS_STRING(padded), 0, rows * sizes[1]);
    for (Py_ssize_t i = 0; i < rows; i++)
        memcpy(PyBytes_AS_STRING(padded) + i * sizes[1], PyBytes_AS_STRING(arguments[0]) + i * sizes[0], sizes[0]);
    return padded;
}
