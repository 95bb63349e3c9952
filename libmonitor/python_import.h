// The import that Python is in the middle of, asked of the Python that is in this process, whichever that is.
#ifndef FORESHOCK_LIBMONITOR_PYTHON_IMPORT_H_
#define FORESHOCK_LIBMONITOR_PYTHON_IMPORT_H_

namespace foreshock {

// Both only in a thread that may be initializing an extension module: Python's lock is never taken here, and
// nothing is asked of Python by whoever does not hold it.

// The file of the extension module that this thread is importing; false where nobody knows.
bool read_imported_file(char (&path)[4096]);

// Makes that import an ImportError with this text, when the initialization returns null.
void refuse_import(const char* text);

}  // namespace foreshock

#endif  // FORESHOCK_LIBMONITOR_PYTHON_IMPORT_H_
