// Bytes as text in RFC 4648 base64, padded.
#ifndef FORESHOCK_EXPORTERS_BASE64_H_
#define FORESHOCK_EXPORTERS_BASE64_H_

#include <optional>
#include <string>
#include <string_view>

namespace foreshock {

std::string to_base64(std::string_view bytes);

// Nothing for anything that to_base64() cannot have written.
std::optional<std::string> from_base64(std::string_view text);

}  // namespace foreshock

#endif  // FORESHOCK_EXPORTERS_BASE64_H_
