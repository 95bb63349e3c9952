// The version of an installed Python package, from the folder of its metadata.
#ifndef FORESHOCK_LIBMONITOR_PACKAGE_VERSION_H_
#define FORESHOCK_LIBMONITOR_PACKAGE_VERSION_H_

namespace foreshock {

// `library` is a file of the package: lib.so in it or up to two folders below. Of the nearest folder above it
// that has metadata "<package>-<version>.dist-info", or of a variant "<package>_cu12-...". False: there is
// none, or they disagree. Opens folders, so not for a hot path.
bool read_package_version(const char* library, const char* package, char (&version)[64]);

}  // namespace foreshock

#endif  // FORESHOCK_LIBMONITOR_PACKAGE_VERSION_H_
