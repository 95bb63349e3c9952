/* foreshock/adapter.h: the interface between libforeshock.so and the adapter, a library that `foreshock run`
 * builds for one exact torch and that hooks torch's operations. Trainers use <foreshock/hook.h>. C99.
 */
#ifndef FORESHOCK_ADAPTER_H_
#define FORESHOCK_ADAPTER_H_

#include <foreshock/hook.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The adapter exports the function below; libforeshock.so finds it by name. */

/* Returns nonzero while this thread runs a backward pass; a forward call in it is a recomputation. Serves the
 * interposed functions of TransformerEngine, which receive no such information from torch. */
int foreshock_adapter_in_backward(void);

#ifdef __cplusplus
}
#endif

#endif /* FORESHOCK_ADAPTER_H_ */
