/* The module `barnabas.protocol.native_codec`: its types and functions, and how a plan is read. */

#include "plan.h"
#include <structmember.h>

Names names;

/* ------------------------------------------------------------------ plans */

void free_fields(Fields *fields) {
    for (Py_ssize_t i = 0; i < fields->count; i++) {
        Py_XDECREF(fields->fields[i].name);
        Py_XDECREF(fields->fields[i].fallback);
        Py_XDECREF(fields->fields[i].layout);
        free_structure(fields->fields[i].inner);
    }
    PyMem_Free(fields->fields);
}

void free_structure(Structure *structure) {
    if (structure == NULL)
        return;
    Py_XDECREF((PyObject *)structure->type);
    free_fields(&structure->present);
    free_fields(&structure->tagged);
    free_fields(&structure->absent);
    free_fields(&structure->lacking);
    PyMem_Free(structure);
}

/* The place of a slot in the objects of a class; -1 with an exception. */
Py_ssize_t slot_offset(PyTypeObject *type, PyObject *name) {
    PyObject *descriptor = PyObject_GetAttr((PyObject *)type, name);
    Py_ssize_t offset = -1;
    if (descriptor == NULL)
        return -1;
    if (Py_IS_TYPE(descriptor, &PyMemberDescr_Type) &&
        ((PyMemberDescrObject *)descriptor)->d_member->type == T_OBJECT_EX)
        offset = ((PyMemberDescrObject *)descriptor)->d_member->offset;
    else
        PyErr_Format(PyExc_TypeError, "%R of %R is no slot", name, type);
    Py_DECREF(descriptor);
    return offset;
}

/* A number that Python says; -1 with an exception. */
static Py_ssize_t number_of(PyObject *value) {
    Py_ssize_t number = value == NULL ? -1 : PyLong_AsSsize_t(value);
    Py_XDECREF(value);
    return number;
}

static int read_field_plan(PyTypeObject *type, PyObject *plan, Field *field) {
    PyObject *inner, *name, *fallback, *layout;
    if (!PyArg_ParseTuple(plan, "UipppppIiOiOO", &name, &field->kind, &field->is_array, &field->is_nullable,
                          &field->is_tagged, &field->is_always, &field->is_message, &field->tag,
                          &field->minimum_bytes, &fallback, &field->fallback_kind, &inner, &layout))
        return -1;
    if (field->kind < BOOL || field->kind > STRUCTURE || field->minimum_bytes < 1 ||
        (field->kind == STRUCTURE) != (inner != Py_None)) {
        PyErr_Format(PyExc_ValueError, "the plan of %U", name);
        return -1;
    }
    field->name = Py_NewRef(name);
    field->fallback = Py_NewRef(fallback);
    field->offset = slot_offset(type, name);
    if (field->offset < 0)
        return -1;
    if (inner != Py_None && (field->inner = read_structure_plan(inner)) == NULL)
        return -1;
    if (layout != Py_None) {
        field->layout = Py_NewRef(layout);
        field->is_read = (int)number_of(PyObject_GetAttrString(layout, "is_read"));
        field->row_bytes = number_of(PyObject_GetAttrString(layout, "size_bytes"));
        if (field->is_read < 0 || field->row_bytes < 0)
            return -1;
    }
    return 0;
}

static int read_fields(PyTypeObject *type, PyObject *plans, Fields *fields) {
    Py_ssize_t count = PyTuple_GET_SIZE(plans);
    fields->fields = PyMem_Calloc(count ? count : 1, sizeof(Field));
    if (fields->fields == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    fields->count = count;
    for (Py_ssize_t i = 0; i < count; i++)
        if (read_field_plan(type, PyTuple_GET_ITEM(plans, i), &fields->fields[i]) < 0)
            return -1;
    return 0;
}

Structure *read_structure_plan(PyObject *plan) {
    PyObject *present, *tagged, *absent, *lacking, *type;
    int is_flexible;
    Structure *structure;
    if (!PyArg_ParseTuple(plan, "O!pO!O!O!O!", &PyType_Type, &type, &is_flexible, &PyTuple_Type, &present,
                          &PyTuple_Type, &tagged, &PyTuple_Type, &absent, &PyTuple_Type, &lacking))
        return NULL;
    structure = PyMem_Calloc(1, sizeof(Structure));
    if (structure == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    structure->type = (PyTypeObject *)Py_NewRef(type);
    structure->is_flexible = is_flexible;
    structure->unknown_offset = slot_offset(structure->type, names.unknown_tagged_fields);
    if (structure->unknown_offset < 0 || read_fields(structure->type, present, &structure->present) < 0 ||
        read_fields(structure->type, tagged, &structure->tagged) < 0 ||
        read_fields(structure->type, absent, &structure->absent) < 0 ||
        read_fields(structure->type, lacking, &structure->lacking) < 0) {
        free_structure(structure);
        return NULL;
    }
    return structure;
}

/* ------------------------------------------------------------------ types */

static PyObject *new_codec(PyTypeObject *type, PyObject *arguments, PyObject *keywords, vectorcallfunc function) {
    PyObject *message, *plan;
    int version;
    Codec *codec;
    if (!PyArg_ParseTuple(arguments, "UiO!", &message, &version, &PyTuple_Type, &plan))
        return NULL;
    codec = (Codec *)type->tp_alloc(type, 0);
    if (codec == NULL)
        return NULL;
    codec->vectorcall = function;
    codec->message = Py_NewRef(message);
    codec->version = version;
    codec->root = read_structure_plan(plan);
    if (codec->root == NULL) {
        Py_DECREF(codec);
        return NULL;
    }
    return (PyObject *)codec;
}

static PyObject *new_decoder(PyTypeObject *type, PyObject *arguments, PyObject *keywords) {
    return new_codec(type, arguments, keywords, (vectorcallfunc)decode);
}

static PyObject *new_encoder(PyTypeObject *type, PyObject *arguments, PyObject *keywords) {
    return new_codec(type, arguments, keywords, (vectorcallfunc)encode);
}

static void free_codec(Codec *codec) {
    Py_XDECREF(codec->message);
    free_structure(codec->root);
    Py_TYPE(codec)->tp_free(codec);
}

static PyTypeObject decoder_type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "barnabas.protocol.native_codec.Decoder",
    .tp_doc = "Decoder(message, version, plan): (buffer, position) -> (message, position).",
    .tp_basicsize = sizeof(Codec),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_vectorcall_offset = offsetof(Codec, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_new = new_decoder,
    .tp_dealloc = (destructor)free_codec,
};

static PyMethodDef encoder_methods[] = {
    {"frame", (PyCFunction)(void (*)(void))encode_frame, METH_FASTCALL, "The parts of a whole response frame."},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject encoder_type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "barnabas.protocol.native_codec.Encoder",
    .tp_doc = "Encoder(message, version, plan): (message, out, parts) -> out.",
    .tp_methods = encoder_methods,
    .tp_basicsize = sizeof(Codec),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_vectorcall_offset = offsetof(Codec, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_new = new_encoder,
    .tp_dealloc = (destructor)free_codec,
};

/* ------------------------------------------------------------------ the module */

static PyObject *named(const char *module_name, const char *name) {
    PyObject *value = NULL, *module = PyImport_ImportModule(module_name);
    if (module != NULL) {
        value = PyObject_GetAttrString(module, name);
        Py_DECREF(module);
    }
    return value;
}

/* A limit that Python says; -1 with an exception. */
static Py_ssize_t limit(const char *module_name, const char *name) {
    return number_of(named(module_name, name));
}

/* The place of a slot of Rows; -1 with an exception. */
static Py_ssize_t rows_slot(const char *name) {
    PyObject *text = PyUnicode_FromString(name);
    Py_ssize_t offset = text == NULL ? -1 : slot_offset(names.rows, text);
    Py_XDECREF(text);
    return offset;
}

static PyMethodDef functions[] = {
    {"construct_natively", construct_natively, METH_VARARGS, "Construct the objects of a class here from now on."},
    {"patch", (PyCFunction)(void (*)(void))patch, METH_FASTCALL, "As in record_batch.py."},
    {"count_records", (PyCFunction)(void (*)(void))count_records, METH_FASTCALL, "Of a batch."},
    {"cut", (PyCFunction)(void (*)(void))cut, METH_FASTCALL, "As in rows.py."},
    {"pad", (PyCFunction)(void (*)(void))pad, METH_FASTCALL, "As in rows.py."},
    {"request_header", (PyCFunction)(void (*)(void))request_header, METH_FASTCALL, "The header of a request."},
    {"plain_record", (PyCFunction)(void (*)(void))plain_record, METH_FASTCALL, "A record of a plain batch."},
    {"assemble_plain", (PyCFunction)(void (*)(void))assemble_plain, METH_FASTCALL, "As in record_batch.py."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "native_codec",
    .m_doc = "Decoders and encoders of messages, by plans (protocol/plan.py).",
    .m_size = -1,
    .m_methods = functions,
};

PyMODINIT_FUNC PyInit_native_codec(void) {
    PyObject *module;
    const char *calls = "barnabas.protocol.compiled_calls", *errors = "barnabas.protocol.errors";
    const char *rows = "barnabas.protocol.rows";
    if ((names.protocol_error = named(errors, "ProtocolError")) == NULL ||
        (names.version_error = named(errors, "UnsupportedVersionError")) == NULL ||
        (names.struct_error = named("struct", "error")) == NULL ||
        (names.write_tags = named(calls, "write_tags")) == NULL ||
        (names.crc32c = named("barnabas.protocol.checksum", "crc32c")) == NULL ||
        (names.rows = (PyTypeObject *)named(rows, "Rows")) == NULL ||
        (names.rows_layout = rows_slot("layout")) < 0 || (names.rows_data = rows_slot("data")) < 0 ||
        (names.rows_count = rows_slot("row_count")) < 0 ||
        (names.rows_min = limit(rows, "ROWS_MIN")) < 0 ||
        (names.unknown_tagged_fields = PyUnicode_InternFromString("unknown_tagged_fields")) == NULL ||
        (names.message_characters_max = limit(calls, "MESSAGE_CHARACTERS_MAX")) < 0 ||
        (names.string_bytes_max = limit(calls, "STRING_BYTES_MAX")) < 0 ||
        (names.unknown_tags_max = limit(calls, "UNKNOWN_TAGS_MAX")) < 0 ||
        (names.by_reference_bytes = limit("barnabas.protocol.message", "BY_REFERENCE_BYTES")) < 0)
        return NULL;
    module = PyModule_Create(&definition);
    if (module != NULL &&
        (PyModule_AddType(module, &decoder_type) < 0 || PyModule_AddType(module, &encoder_type) < 0))
        Py_CLEAR(module);
    return module;
}
