/* Messages from keywords: what the constructors that message.py writes do, without a frame of Python. */

#include "plan.h"

static PyObject *constructed; /* class -> capsule of its fields; classes of messages live for ever */

static const char *const FIELDS = "barnabas.protocol.native_codec.fields";

/* The field of a keyword, which is nearly always interned, as its name is; NULL: there is none. */
static Field *field_of(Fields *fields, PyObject *keyword) {
    for (Py_ssize_t i = 0; i < fields->count; i++)
        if (fields->fields[i].name == keyword)
            return &fields->fields[i];
    for (Py_ssize_t i = 0; i < fields->count; i++)
        if (PyUnicode_Compare(fields->fields[i].name, keyword) == 0)
            return &fields->fields[i];
    return NULL;
}

static PyObject *construct(PyObject *type, PyObject *const *arguments, size_t flags, PyObject *keywords) {
    PyObject *object, *capsule = PyDict_GetItemWithError(constructed, type);
    Fields *fields = capsule == NULL ? NULL : PyCapsule_GetPointer(capsule, FIELDS);
    Py_ssize_t count = keywords == NULL ? 0 : PyTuple_GET_SIZE(keywords);
    if (fields == NULL)
        return NULL;
    if (PyVectorcall_NARGS(flags) != 0)
        return PyErr_Format(PyExc_TypeError, "%R takes keyword arguments only", type);
    if ((object = ((PyTypeObject *)type)->tp_alloc((PyTypeObject *)type, 0)) == NULL)
        return NULL;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *keyword = PyTuple_GET_ITEM(keywords, i);
        Field *field = field_of(fields, keyword);
        if (field == NULL) {
            PyErr_Format(PyExc_TypeError, "%R has no field %R", type, keyword);
            goto failed;
        }
        SLOT(object, field->offset) = Py_NewRef(arguments[i]);
    }
    for (Py_ssize_t i = 0; i < fields->count; i++) {
        Field *field = &fields->fields[i];
        if (SLOT(object, field->offset) == NULL) {
            PyObject *value = field->fallback_kind == IS_LIST ? PyList_New(0) : Py_NewRef(field->fallback);
            if (value == NULL)
                goto failed;
            SLOT(object, field->offset) = value;
        }
    }
    return object;
failed:
    Py_DECREF(object);
    return NULL;
}

/* (class, its fields as (name, default, kind of default)): from now on this constructs its objects. */
PyObject *construct_natively(PyObject *module, PyObject *arguments) {
    PyObject *type, *plan, *capsule;
    Fields *fields;
    if (!PyArg_ParseTuple(arguments, "O!O!", &PyType_Type, &type, &PyTuple_Type, &plan) ||
        (constructed == NULL && (constructed = PyDict_New()) == NULL))
        return NULL;
    if ((fields = PyMem_Calloc(1, sizeof(Fields))) == NULL ||
        (fields->fields = PyMem_Calloc(PyTuple_GET_SIZE(plan), sizeof(Field))) == NULL) {
        PyMem_Free(fields);
        return PyErr_NoMemory();
    }
    for (; fields->count < PyTuple_GET_SIZE(plan); fields->count++) {
        Field *field = &fields->fields[fields->count];
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(plan, fields->count), "UOi", &field->name, &field->fallback,
                              &field->fallback_kind) ||
            (field->offset = slot_offset((PyTypeObject *)type, field->name)) < 0)
            goto failed;
        Py_INCREF(field->name);
        Py_INCREF(field->fallback);
        PyUnicode_InternInPlace(&field->name);
    }
    if ((capsule = PyCapsule_New(fields, FIELDS, NULL)) == NULL)
        goto failed;
    if (PyDict_SetItem(constructed, type, capsule) < 0) {
        Py_DECREF(capsule);
        goto failed;
    }
    Py_DECREF(capsule);
    ((PyTypeObject *)type)->tp_vectorcall = construct;
    Py_RETURN_NONE;
failed:
    free_fields(fields);
    PyMem_Free(fields);
    return NULL;
}
