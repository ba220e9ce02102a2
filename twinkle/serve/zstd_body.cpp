#include "twinkle/serve/zstd_body.h"

#include <zstd.h>

#include <memory>

#include "twinkle/core/error.h"

namespace twinkle::serve {

std::string unpack_zstd(std::string_view bytes, int64_t most) {
  struct Free {
    void operator()(ZSTD_DStream* stream) const { ZSTD_freeDStream(stream); }
  };
  const std::unique_ptr<ZSTD_DStream, Free> stream(ZSTD_createDStream());
  ZSTD_DCtx_setParameter(stream.get(), ZSTD_d_windowLogMax, 27);
  std::string out, piece(ZSTD_DStreamOutSize(), '\0');
  ZSTD_inBuffer in{bytes.data(), bytes.size(), 0};
  size_t left = 1;
  while (in.pos < in.size || left != 0) {
    ZSTD_outBuffer to{piece.data(), piece.size(), 0};
    const size_t before = in.pos;
    left = ZSTD_decompressStream(stream.get(), &to, &in);
    if (ZSTD_isError(left) != 0) throw invalid_argument("the body is not whole Zstandard data");
    if (static_cast<int64_t>(out.size() + to.pos) > most)
      throw exhausted("the body is larger than " + std::to_string(most) + " bytes when unpacked");
    out.append(piece.data(), to.pos);
    if (in.pos == before && to.pos == 0 && left != 0) throw invalid_argument("the body is cut off");
  }
  return out;
}

}  // namespace twinkle::serve
