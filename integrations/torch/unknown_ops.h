// Operations that look like attention by their arguments and that nobody here knows: their names are
// reported, so that what is not seen is at least known by name. Only torch's own mutex-held callback runs
// here, at registration: it reads a schema and notes a name.
#ifndef FORESHOCK_INTEGRATIONS_TORCH_UNKNOWN_OPS_H_
#define FORESHOCK_INTEGRATIONS_TORCH_UNKNOWN_OPS_H_

#include <cstring>

#include "attention_ops.h"
#include "dispatch.h"

namespace foreshock::adapter {

inline bool HasTensor(const c10::FunctionSchema& schema, const char* name, const char* other) {
  for (const c10::Argument& argument : schema.arguments()) {
    if ((argument.name() == name || argument.name() == other) &&
        argument.type()->kind() == c10::TypeKind::TensorType)
      return true;
  }
  return false;
}

// torch's own namespaces: what of them is attention is in the table, or ends in something that is.
inline bool IsKnown(const c10::OperatorName& op) {
  for (const char* space : {"aten::", "prims::", "foreshock::", "torch_attn::", "inductor::", "onnx::"}) {
    if (op.name.rfind(space, 0) == 0) return true;
  }
  for (const AttentionOp& known : kAttentionOps) {
    if (op.name == std::string(known.space) + "::" + known.name) return true;
  }
  return false;
}

class UnknownOps final : public c10::OpRegistrationListener {
 public:
  void onOperatorRegistered(const c10::OperatorHandle& op) override {
    try {
      const c10::FunctionSchema& schema = op.schema();
      const bool attends =
          HasTensor(schema, "query", "q") && HasTensor(schema, "key", "k") && HasTensor(schema, "value", "v");
      if (attends && !IsKnown(op.operator_name()))
        foreshock_note_unseen(op.operator_name().name.c_str(), FORESHOCK_UNSEEN_REGISTERED);
    } catch (...) {
    }
  }
  void onOperatorDeregistered(const c10::OperatorHandle&) override {}

  // Once; also told what is registered already. Never taken out.
  static void Listen() {
    new c10::RegistrationHandleRAII(
        c10::Dispatcher::singleton().addRegistrationListener(std::make_unique<UnknownOps>()));
  }
};

}  // namespace foreshock::adapter

#endif  // FORESHOCK_INTEGRATIONS_TORCH_UNKNOWN_OPS_H_
