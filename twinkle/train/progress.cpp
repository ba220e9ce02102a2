#include "twinkle/train/progress.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <vector>

#include "twinkle/core/clock.h"
#include "twinkle/core/file_errors.h"
#include "twinkle/core/files.h"

namespace twinkle {
namespace {

// The lines of a report file that belong to the run up to `step`. One of no step closed the run, which goes
// on.
std::string lines_up_to(const std::string& text, int64_t step) {
  std::string kept;
  size_t begin = 0;
  for (size_t end = text.find('\n'); end != std::string::npos;
       begin = end + 1, end = text.find('\n', begin)) {
    const std::string line = text.substr(begin, end - begin);
    const Json value = Json::parse(line, nullptr, false);
    if (!value.is_object()) continue;
    const auto found = value.find("step");
    if (found == value.end() || !found->is_number() || found->get<double>() > static_cast<double>(step))
      continue;
    kept += line + "\n";
  }
  return kept;
}

std::string format(const char* pattern, double x) {
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, pattern, x);
  return buffer;
}

std::string clock_text(double seconds) {
  const auto s = static_cast<long long>(seconds + 0.5);
  char buffer[48];
  if (s >= 3600) {
    std::snprintf(buffer, sizeof buffer, "%lld:%02lld:%02lld", s / 3600, s / 60 % 60, s % 60);
  } else {
    std::snprintf(buffer, sizeof buffer, "%lld:%02lld", s / 60, s % 60);
  }
  return buffer;
}

}  // namespace

JsonlWriter::JsonlWriter(const std::string& path, int64_t keep_up_to_step) : path_(path) {
  std::string kept;
  if (keep_up_to_step > 0 && file_exists(path)) kept = lines_up_to(read_file(path), keep_up_to_step);
  write_file_atomic(path, kept);
  file_ = std::fopen(path.c_str(), "ae");
  if (file_ == nullptr) throw file_error("[report] cannot open '" + path + "'", errno);
}

JsonlWriter::~JsonlWriter() {
  if (file_ != nullptr) std::fclose(file_);
}

void JsonlWriter::write(const Json& line) {
  const std::string text = line.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  if (std::fwrite(text.data(), 1, text.size(), file_) != text.size() || std::fflush(file_) != 0) {
    throw file_error("[report] cannot write '" + path_ + "'", errno);
  }
}

std::string progress_text(int64_t step, int64_t total_steps, const Json& m) {
  std::string text =
      "step " + std::to_string(step) + (total_steps > 0 ? "/" + std::to_string(total_steps) : "");
  const auto add = [&](const char* key, const char* pattern, double scale = 1.0) {
    const auto found = m.find(key);
    if (found != m.end() && found->is_number()) text += "  " + format(pattern, found->get<double>() * scale);
  };
  add("loss", "loss %.4f");
  add("loss_sum", "loss sum %.4f");
  add("accuracy", "acc %.1f%%", 100.0);
  add("learning_rate", "lr %.2e");
  add("grad_norm", "grad %.3f");
  add("tokens_per_second", "%.0f tok/s");
  return text;
}

ProgressLine::ProgressLine(std::FILE* out) : out_(out), live_(::isatty(::fileno(out)) == 1) {}

void ProgressLine::update(int64_t step, int64_t total_steps, const Json& metrics) {
  std::string text = progress_text(step, total_steps, metrics);
  if (first_step_ < 0) first_step_ = step - 1;
  if (total_steps > 0 && step > first_step_) {
    const double spent = seconds_since(start_);
    text += "  left " + clock_text(spent / static_cast<double>(step - first_step_) *
                                   static_cast<double>(total_steps - step));
  }
  std::fprintf(out_, live_ ? "\r\033[K%s" : "%s\n", text.c_str());
  std::fflush(out_);
  open_ = live_;
}

void ProgressLine::note(const std::string& line) {
  std::fprintf(out_, open_ ? "\r\033[K%s\n" : "%s\n", line.c_str());
  std::fflush(out_);
  open_ = false;
}

void ProgressLine::finish() {
  if (open_) std::fputc('\n', out_);
  std::fflush(out_);
  open_ = false;
}

// Chart.

namespace {

// A canvas of dots, 2 x 4 to a braille character or 1 x 1 to an ASCII one.
class Canvas {
 public:
  Canvas(int64_t width, int64_t height, bool ascii)
      : ascii_(ascii),
        columns_(width * (ascii ? 1 : 2)),
        rows_(height * (ascii ? 1 : 4)),
        dots_(static_cast<size_t>(columns_ * rows_), false) {}

  int64_t columns() const { return columns_; }
  int64_t rows() const { return rows_; }
  void set(int64_t x, int64_t y) { dots_[static_cast<size_t>(y * columns_ + x)] = true; }

  std::string line(int64_t row) const {
    std::string text;
    for (int64_t x = 0; x < columns_; x += ascii_ ? 1 : 2) {
      if (ascii_) {
        text += at(x, row) ? '*' : ' ';
        continue;
      }
      // Bits of a braille pattern by (row, column), Unicode 2800.
      static constexpr int kBits[4][2] = {{0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}};
      int pattern = 0;
      for (int64_t dy = 0; dy < 4; ++dy) {
        for (int64_t dx = 0; dx < 2; ++dx) {
          if (at(x + dx, row * 4 + dy)) pattern |= kBits[dy][dx];
        }
      }
      text += static_cast<char>(0xE2);
      text += static_cast<char>(0xA0 | (pattern >> 6));
      text += static_cast<char>(0x80 | (pattern & 0x3F));
    }
    return text;
  }

 private:
  bool at(int64_t x, int64_t y) const { return dots_[static_cast<size_t>(y * columns_ + x)]; }
  bool ascii_;
  int64_t columns_, rows_;
  std::vector<bool> dots_;
};

std::string axis_label(double x) {
  const std::string text = format("%.4g", x);
  return text.size() >= 8 ? text : std::string(8 - text.size(), ' ') + text;
}

}  // namespace

std::string line_chart(std::span<const double> values, const ChartOptions& options) {
  double low = INFINITY, high = -INFINITY;
  for (const double v : values) {
    if (std::isfinite(v)) low = std::min(low, v), high = std::max(high, v);
  }
  std::string text = options.title.empty() ? "" : options.title + "\n";
  if (low > high) return text + "(nothing to draw)\n";

  Canvas canvas(std::max<int64_t>(1, options.width), std::max<int64_t>(1, options.height), options.ascii);
  const auto count = static_cast<int64_t>(values.size());
  const int64_t columns = std::min(canvas.columns(), count);
  const auto row_of = [&](double v) {
    const double share = high > low ? (v - low) / (high - low) : 0.5;
    return static_cast<int64_t>(std::lround((1.0 - share) * static_cast<double>(canvas.rows() - 1)));
  };
  int64_t last = -1;
  for (int64_t x = 0; x < columns; ++x) {
    // The mean of the values that fall into this column.
    double sum = 0;
    int64_t in_column = 0;
    for (int64_t i = x * count / columns; i < (x + 1) * count / columns; ++i) {
      if (std::isfinite(values[static_cast<size_t>(i)])) sum += values[static_cast<size_t>(i)], ++in_column;
    }
    if (in_column == 0) continue;
    const int64_t at = columns == 1 ? 0 : x * (canvas.columns() - 1) / (columns - 1);
    const int64_t row = row_of(sum / static_cast<double>(in_column));
    // A steep fall is drawn as one stroke.
    const int64_t from = last < 0 ? row : last + (row > last) - (row < last);
    for (int64_t y = std::min(from, row); y <= std::max(from, row); ++y) canvas.set(at, y);
    last = row;
  }
  for (int64_t row = 0; row < options.height; ++row) {
    const bool top = row == 0, bottom = row + 1 == options.height;
    text += (top      ? axis_label(high)
             : bottom ? axis_label(low)
                      : std::string(8, ' ')) +
            (options.ascii ? " |" : " \u2502");
    text += canvas.line(row) + "\n";
  }
  const std::string first = "1", end = std::to_string(count);
  text += std::string(9, ' ') + (options.ascii ? "+" : "\u2514");
  for (int64_t i = 0; i < options.width; ++i) text += options.ascii ? "-" : "\u2500";
  const int64_t gap = std::max<int64_t>(1, options.width - static_cast<int64_t>(first.size() + end.size()));
  text += "\n" + std::string(10, ' ') + first + std::string(static_cast<size_t>(gap), ' ') + end + "\n";
  return text;
}

}  // namespace twinkle
