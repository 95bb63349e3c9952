/* Two halves of one call with the longest list of arguments a shim can have, of every kind. -DREAL: the callee. */
#include <stdint.h>
#include <stdio.h>

int32_t aoti_torch_cpu__scaled_dot_product_flash_attention_for_cpu(
    void* a0, int32_t a1, double b0, int64_t a2, void* a3, int32_t a4, double b1, void* a5, int32_t a6, int64_t a7,
    void* a8, double b2, int32_t a9, int64_t a10, double b3, int32_t a11, int64_t a12, double b4, void* a13, int32_t a14,
    int64_t a15, double b5, int32_t a16, int64_t a17, double b6, int32_t a18, int64_t a19, double b7, void* a20,
    int32_t a21, int64_t a22, int32_t a23, int64_t a24, int32_t a25, int64_t a26, int32_t a27, int64_t a28, int32_t a29);

#ifdef REAL
int32_t aoti_torch_cpu__scaled_dot_product_flash_attention_for_cpu(
    void* a0, int32_t a1, double b0, int64_t a2, void* a3, int32_t a4, double b1, void* a5, int32_t a6, int64_t a7,
    void* a8, double b2, int32_t a9, int64_t a10, double b3, int32_t a11, int64_t a12, double b4, void* a13, int32_t a14,
    int64_t a15, double b5, int32_t a16, int64_t a17, double b6, int32_t a18, int64_t a19, double b7, void* a20,
    int32_t a21, int64_t a22, int32_t a23, int64_t a24, int32_t a25, int64_t a26, int32_t a27, int64_t a28, int32_t a29) {
  const int64_t words[] = {(intptr_t)a0, a1, a2, (intptr_t)a3, a4, (intptr_t)a5, a6, a7, (intptr_t)a8, a9, a10, a11, a12,
                           (intptr_t)a13, a14, a15, a16, a17, a18, a19, (intptr_t)a20, a21, a22, a23, a24, a25, a26, a27,
                           a28, a29};
  const double doubles[] = {b0, b1, b2, b3, b4, b5, b6, b7};
  int n;
  for (n = 0; n < 30; ++n)
    if (words[n] != -1 - n) return 100 + n;
  for (n = 0; n < 8; ++n)
    if (doubles[n] != 0.5 + n) return 200 + n;
  return 7;
}
#else
int main(void) {
  printf("%d\n", aoti_torch_cpu__scaled_dot_product_flash_attention_for_cpu(
                     (void*)-1, -2, 0.5, -3, (void*)-4, -5, 1.5, (void*)-6, -7, -8, (void*)-9, 2.5, -10, -11, 3.5, -12,
                     -13, 4.5, (void*)-14, -15, -16, 5.5, -17, -18, 6.5, -19, -20, 7.5, (void*)-21, -22, -23, -24, -25,
                     -26, -27, -28, -29, -30));
  return 0;
}
#endif
