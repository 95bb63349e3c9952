// Lines of a record as comma separated values (RFC 4180), the columns in the order of the fields.
#ifndef FORESHOCK_EXPORTERS_CSV_H_
#define FORESHOCK_EXPORTERS_CSV_H_

#include <string>
#include <string_view>

#include "exporters/record_reader.h"

namespace foreshock {

// "run", "step", "sample" or "event".
const char* type_of(const RecordLine& line);

// The names of the columns for lines of the type of `line`, with a newline.
std::string csv_header(const RecordLine& line);

// The values, with a newline. Unknown is empty; a number that is not finite is "nan"; numbers come back to
// the last bit; a list is its numbers with blanks between them, an
// object its names and numbers ("a=1 b=2"). Independent of the locale.
std::string csv_row(const RecordLine& line);

// One cell, quoted where it must be.
std::string csv_text(std::string_view text);

}  // namespace foreshock

#endif  // FORESHOCK_EXPORTERS_CSV_H_
