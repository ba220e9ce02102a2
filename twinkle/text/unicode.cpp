#include "twinkle/text/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <iterator>

namespace twinkle::unicode {
namespace {

struct CharRange {
  char32_t first, last;
};
struct CategoryRange {
  char32_t first, last;
  utf8proc_category_t category;
};
struct CasePair {
  char32_t from, to;
};

#include "twinkle/text/unicode_tables.inc"

template <class Table>
auto find_range(const Table& table, char32_t c) -> decltype(&table[0]) {
  auto it = std::upper_bound(std::begin(table), std::end(table), c,
                             [](char32_t x, const auto& r) { return x < r.first; });
  if (it == std::begin(table)) return nullptr;
  --it;
  return c <= it->last ? &*it : nullptr;
}

utf8proc_category_t known_category(char32_t c) { return utf8proc_category(static_cast<utf8proc_int32_t>(c)); }

// With the characters of the Unicode version that the package's regex engine has.
utf8proc_category_t category(char32_t c) {
  const utf8proc_category_t known = known_category(c);
  if (known != UTF8PROC_CATEGORY_CN) return known;
  const auto* added = find_range(kNewCategories, c);
  return added == nullptr ? known : added->category;
}

uint8_t class_of(utf8proc_category_t category) {
  switch (category) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LT:
      return kLetter | kUpper;
    case UTF8PROC_CATEGORY_LL:
      return kLetter | kLower;
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
      return kLetter;
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
      return kMark;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
      return kNumber;
    case UTF8PROC_CATEGORY_PC:
    case UTF8PROC_CATEGORY_PD:
    case UTF8PROC_CATEGORY_PS:
    case UTF8PROC_CATEGORY_PE:
    case UTF8PROC_CATEGORY_PI:
    case UTF8PROC_CATEGORY_PF:
    case UTF8PROC_CATEGORY_PO:
      return kPunctuation;
    case UTF8PROC_CATEGORY_SM:
    case UTF8PROC_CATEGORY_SC:
    case UTF8PROC_CATEGORY_SK:
    case UTF8PROC_CATEGORY_SO:
      return kSymbol;
    default:
      return 0;
  }
}

bool is_ascii_punctuation(char32_t c) {
  return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') || (c >= '{' && c <= '~');
}

constexpr const char* kCategoryNames[] = {"Cn", "Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd",
                                          "Nl", "No", "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "Sm",
                                          "Sc", "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Cs", "Co"};

void append_range(std::string& out, char32_t first, char32_t last) {
  char text[40];
  std::snprintf(text, sizeof text, "\\x{%X}-\\x{%X}", static_cast<unsigned>(first),
                static_cast<unsigned>(last));
  out += text;
}

}  // namespace

void append(std::string& out, char32_t c) {
  if (c < 0x80) {
    out += static_cast<char>(c);
  } else if (c < 0x800) {
    out += static_cast<char>(0xC0 | c >> 6);
    out += static_cast<char>(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    out += static_cast<char>(0xE0 | c >> 12);
    out += static_cast<char>(0x80 | (c >> 6 & 0x3F));
    out += static_cast<char>(0x80 | (c & 0x3F));
  } else {
    out += static_cast<char>(0xF0 | c >> 18);
    out += static_cast<char>(0x80 | (c >> 12 & 0x3F));
    out += static_cast<char>(0x80 | (c >> 6 & 0x3F));
    out += static_cast<char>(0x80 | (c & 0x3F));
  }
}

size_t count_chars(std::string_view text) {
  size_t count = 0;
  for (const char c : text) count += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  return count;
}

namespace {

// Length of the well-formed character at `at`, or 0; `bad` is then the length of the maximal ill-formed part.
size_t well_formed(std::string_view s, size_t at, size_t* bad) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(s[i]); };
  const unsigned char c = byte(at);
  *bad = 1;
  if (c < 0x80) return 1;
  size_t need;
  unsigned char low = 0x80, high = 0xBF;
  if (c >= 0xC2 && c <= 0xDF) {
    need = 2;
  } else if (c >= 0xE0 && c <= 0xEF) {
    need = 3;
    if (c == 0xE0) low = 0xA0;
    if (c == 0xED) high = 0x9F;
  } else if (c >= 0xF0 && c <= 0xF4) {
    need = 4;
    if (c == 0xF0) low = 0x90;
    if (c == 0xF4) high = 0x8F;
  } else {
    return 0;
  }
  for (size_t k = 1; k < need; ++k) {
    if (at + k >= s.size() || byte(at + k) < low || byte(at + k) > high) {
      *bad = k;
      return 0;
    }
    low = 0x80;
    high = 0xBF;
  }
  return need;
}

size_t skip_ascii(std::string_view s, size_t at) {
  while (at + 8 <= s.size()) {
    uint64_t word;
    std::memcpy(&word, s.data() + at, 8);
    if ((word & 0x8080808080808080ULL) != 0) break;
    at += 8;
  }
  while (at < s.size() && static_cast<unsigned char>(s[at]) < 0x80) ++at;
  return at;
}

}  // namespace

size_t first_invalid(std::string_view bytes) {
  size_t at = 0, bad = 0;
  while ((at = skip_ascii(bytes, at)) < bytes.size()) {
    const size_t length = well_formed(bytes, at, &bad);
    if (length == 0) return at;
    at += length;
  }
  return bytes.size();
}

size_t settled_prefix(std::string_view bytes) {
  for (size_t back = 1; back <= 3 && back <= bytes.size(); ++back) {
    const size_t at = bytes.size() - back;
    if ((static_cast<unsigned char>(bytes[at]) & 0xC0) == 0x80) continue;
    size_t bad = 0;
    // Unfinished: everything from the lead byte on is a proper beginning of a character.
    if (well_formed(bytes, at, &bad) == 0 && static_cast<unsigned char>(bytes[at]) >= 0xC2 &&
        static_cast<unsigned char>(bytes[at]) <= 0xF4 && bad == back) {
      return at;
    }
    break;
  }
  return bytes.size();
}

std::string replace_invalid(std::string_view bytes, std::vector<size_t>* source) {
  std::string out;
  out.reserve(bytes.size() + 16);
  size_t at = 0;
  while (at < bytes.size()) {
    size_t bad = 0;
    const size_t length = well_formed(bytes, at, &bad);
    if (length != 0) {
      out.append(bytes, at, length);
      if (source != nullptr) {
        for (size_t k = 0; k < length; ++k) source->push_back(at + k);
      }
      at += length;
    } else {
      out += "\xEF\xBF\xBD";
      if (source != nullptr) source->insert(source->end(), 3, at);
      at += bad;
    }
  }
  if (source != nullptr) source->push_back(bytes.size());
  return out;
}

#define S kSpace
#define P kPunctuation
#define Y kSymbol
#define N kNumber
#define U (kLetter | kUpper)
#define L (kLetter | kLower)
const uint8_t kAsciiClass[128] = {
    0, 0, 0, 0, 0, 0, 0, 0, 0, S, S, S, S, S, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    S, P, P, P, Y, P, P, P, P, P, P, Y, P, P, P, P, N, N, N, N, N, N, N, N, N, N, P, P, Y, Y, Y, P,
    P, U, U, U, U, U, U, U, U, U, U, U, U, U, U, U, U, U, U, U, U, U, U, U, U, U, U, P, P, P, Y, P,
    Y, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, P, Y, P, Y, 0};
#undef S
#undef P
#undef Y
#undef N
#undef U
#undef L

uint8_t wide_class(char32_t c) {
  if (is_space(c)) return kSpace;
  return class_of(category(c));
}

bool is_space(char32_t c) {
  if (c < 0x80) return c == ' ' || (c >= 9 && c <= 13);
  return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 ||
         c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool is_numeric(char32_t c) {
  return (char_class(c) & kNumber) != 0 || (c >= 0x80 && find_range(kMoreNumeric, c) != nullptr);
}

bool is_word(char32_t c) {
  if (c < 0x80) return (kAsciiClass[c] & (kLetter | kNumber)) != 0 || c == '_';
  const utf8proc_category_t kind = category(c);
  if ((class_of(kind) & (kLetter | kMark)) != 0 || kind == UTF8PROC_CATEGORY_ND ||
      kind == UTF8PROC_CATEGORY_PC)
    return true;
  return find_range(kMoreRustWord, c) != nullptr;
}

bool is_punctuation(char32_t c) {
  if (c < 0x80) return is_ascii_punctuation(c);
  if ((class_of(known_category(c)) & kPunctuation) != 0) return find_range(kLessPunctuation, c) == nullptr;
  return find_range(kMorePunctuation, c) != nullptr;
}

bool is_mark(char32_t c) {
  if (c < 0x300) return false;
  if ((class_of(known_category(c)) & kMark) != 0) return find_range(kLessMarks, c) == nullptr;
  return find_range(kMoreMarks, c) != nullptr;
}

bool is_nonspacing_mark(char32_t c) {
  if (c < 0x300) return false;
  if (known_category(c) == UTF8PROC_CATEGORY_MN) return find_range(kLessNonspacing, c) == nullptr;
  return find_range(kMoreNonspacing, c) != nullptr;
}

bool is_other(char32_t c) {
  const utf8proc_category_t kind = known_category(c);
  if (kind != UTF8PROC_CATEGORY_CC && kind != UTF8PROC_CATEGORY_CF && kind != UTF8PROC_CATEGORY_CO)
    return false;
  return find_range(kLessOther, c) == nullptr;
}

bool is_cjk(char32_t c) {
  return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) || (c >= 0x20000 && c <= 0x2A6DF) ||
         (c >= 0x2A700 && c <= 0x2B73F) || (c >= 0x2B740 && c <= 0x2B81F) || (c >= 0x2B920 && c <= 0x2CEAF) ||
         (c >= 0xF900 && c <= 0xFAFF) || (c >= 0x2F800 && c <= 0x2FA1F);
}

void append_lower(std::string& out, char32_t c) {
  if (c < 0x80) {
    out += static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c);
    return;
  }
  if (c == 0x130) {  // the only character whose lower case is two characters
    out += "i\xCC\x87";
    return;
  }
  const auto* pair = std::lower_bound(std::begin(kMoreLower), std::end(kMoreLower), c,
                                      [](const CasePair& p, char32_t x) { return p.from < x; });
  if (pair != std::end(kMoreLower) && pair->from == c) {
    append(out, pair->to);
    return;
  }
  append(out, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))));
}

std::string newer_ranges(std::string_view name) {
  std::string out;
  for (const auto& range : kNewCategories) {
    if (std::string_view(kCategoryNames[range.category]).starts_with(name))
      append_range(out, range.first, range.last);
  }
  return out;
}

std::string more_word_ranges() {
  std::string out;
  for (const auto& range : kMoreRegexWord) append_range(out, range.first, range.last);
  return out;
}

namespace {

bool is_jamo_tail(char32_t c) { return c >= 0x1161 && c <= 0x11C2; }

// A character that any normal form leaves alone and that never joins with its neighbours to the left.
bool is_inert(char32_t c, bool compose, bool compat) {
  if (c < 0xA0) return true;
  if (compose && !compat && c < 0x300) return true;
  const utf8proc_property_t* p = utf8proc_get_property(static_cast<utf8proc_int32_t>(c));
  if (p->combining_class != 0 || p->decomp_seqindex != UINT16_MAX) return false;
  if (c >= 0xAC00 && c <= 0xD7A3) return compose;
  if (!compose) return true;
  // Second halves of compositions: most have a combining class; the rest have a composition index of that
  // kind.
  return !is_jamo_tail(c) && p->comb_index == UINT16_MAX;
}

// comb_index marks first and second halves alike, and first halves are common letters (a, e, Greek ...). A
// first half is no trouble by itself: only what follows it can be. Those without a class that follow are few
// enough to list.
bool may_join_left(char32_t c) {
  switch (c) {
    case 0x9BE:
    case 0x9D7:
    case 0xB3E:
    case 0xB56:
    case 0xB57:
    case 0xBBE:
    case 0xBD7:
    case 0xCC2:
    case 0xCD5:
    case 0xCD6:
    case 0xD3E:
    case 0xD57:
    case 0xDCF:
    case 0xDDF:
    case 0x102E:
    case 0x1B35:
    case 0x11127:
    case 0x1133E:
    case 0x11357:
    case 0x114B0:
    case 0x114BA:
    case 0x114BD:
    case 0x115AF:
    case 0x11930:
    case 0x113B8:
    case 0x113BB:
    case 0x113C2:
    case 0x113C5:
    case 0x113C7:
    case 0x113C8:
    case 0x113C9:
    case 0x1611E:
    case 0x16129:
    case 0x1611F:
    case 0x16120:
    case 0x16D67:
      return true;
    default:
      return is_jamo_tail(c);
  }
}

bool is_safe(char32_t c, bool compose, bool compat) {
  if (is_inert(c, compose, compat)) return true;
  const utf8proc_property_t* p = utf8proc_get_property(static_cast<utf8proc_int32_t>(c));
  if (p->combining_class != 0 || p->decomp_seqindex != UINT16_MAX) return false;
  if (c >= 0xAC00 && c <= 0xD7A3) return compose;
  return !may_join_left(c);
}

void decompose(char32_t c, bool compat, std::vector<utf8proc_int32_t>& out) {
  if (find_range(kNoDecomposition, c) != nullptr) {
    out.push_back(static_cast<utf8proc_int32_t>(c));
    return;
  }
  utf8proc_int32_t buffer[32];
  int boundary = 0;
  const int options = UTF8PROC_DECOMPOSE | (compat ? UTF8PROC_COMPAT : 0);
  const utf8proc_ssize_t n = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c), buffer, 32,
                                                     static_cast<utf8proc_option_t>(options), &boundary);
  if (n <= 0 || n > 32) {
    out.push_back(static_cast<utf8proc_int32_t>(c));
  } else {
    out.insert(out.end(), buffer, buffer + n);
  }
}

int combining_class(utf8proc_int32_t c) {
  const int known = utf8proc_get_property(c)->combining_class;
  return known != 0 && find_range(kNoReorder, static_cast<char32_t>(c)) != nullptr ? 0 : known;
}

// Leaves out what stays the same at both ends.
void narrow(std::string_view text, Rewrite& rewrite) {
  size_t at = 0;
  while (rewrite.begin < rewrite.end && at < rewrite.out.size()) {
    const size_t n = char_bytes(text[rewrite.begin]);
    if (text.substr(rewrite.begin, n) != std::string_view(rewrite.out).substr(at, n)) break;
    rewrite.begin += n;
    at += n;
  }
  rewrite.out.erase(0, at);
  while (rewrite.begin < rewrite.end && !rewrite.out.empty()) {
    const size_t last = previous(text, rewrite.end), n = rewrite.end - last;
    if (n > rewrite.out.size() ||
        text.substr(last, n) != std::string_view(rewrite.out).substr(rewrite.out.size() - n))
      break;
    rewrite.end = last;
    rewrite.out.resize(rewrite.out.size() - n);
  }
}

}  // namespace

bool is_surely_nfc(std::string_view text) {
  size_t at = 0;
  while ((at = skip_ascii(text, at)) < text.size()) {
    const char32_t c = char_at(text, at);
    if (!is_safe(c, true, false)) return false;
    at += char_bytes(text[at]);
  }
  return true;
}

std::vector<Rewrite> normalize(std::string_view text, Form form) {
  const bool compose = form == Form::kNfc || form == Form::kNfkc;
  const bool compat = form == Form::kNfkc || form == Form::kNfkd;
  std::vector<Rewrite> rewrites;
  std::vector<utf8proc_int32_t> chars;
  size_t at = 0, last_safe = 0;
  bool has_safe = false;
  while (at < text.size()) {
    const char32_t c = char_at(text, at);
    if (is_safe(c, compose, compat)) {
      last_safe = at;
      has_safe = true;
      at += char_bytes(text[at]);
      continue;
    }
    // From the starter on the left to the next safe character, which starts anew; where nothing is composed,
    // only as far as marks follow, which may have to change places.
    const size_t begin = compose && has_safe ? last_safe : at;
    size_t end = begin;
    chars.clear();
    while (end < text.size()) {
      const char32_t next = char_at(text, end);
      if (end > at && is_safe(next, compose, compat)) break;
      const size_t before = chars.size();
      decompose(next, compat, chars);
      if (!compose && end > at && combining_class(chars[before]) == 0) {
        chars.resize(before);
        break;
      }
      end += char_bytes(text[end]);
    }
    for (size_t i = 0; i < chars.size();) {
      if (combining_class(chars[i]) == 0) {
        ++i;
        continue;
      }
      size_t j = i;
      while (j < chars.size() && combining_class(chars[j]) != 0) ++j;
      std::stable_sort(
          chars.begin() + static_cast<std::ptrdiff_t>(i), chars.begin() + static_cast<std::ptrdiff_t>(j),
          [](utf8proc_int32_t a, utf8proc_int32_t b) { return combining_class(a) < combining_class(b); });
      i = j;
    }
    auto length = static_cast<utf8proc_ssize_t>(chars.size());
    if (compose) {
      length = utf8proc_normalize_utf32(chars.data(), length,
                                        static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
    }
    Rewrite rewrite{begin, end, {}};
    for (utf8proc_ssize_t i = 0; i < length; ++i)
      append(rewrite.out, static_cast<char32_t>(chars[static_cast<size_t>(i)]));
    narrow(text, rewrite);
    if (rewrite.begin != rewrite.end || !rewrite.out.empty()) rewrites.push_back(std::move(rewrite));
    at = end;
    has_safe = false;
  }
  return rewrites;
}

}  // namespace twinkle::unicode
