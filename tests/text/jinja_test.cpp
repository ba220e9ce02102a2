// The template engine against Jinja2's own output: stored goldens of real templates, and small cases whose
// expected text is what Jinja2 3.1.6 prints for them (tests/parity/jinja_parity.py renders the same file of
// cases with Jinja2).
#include "twinkle/text/jinja.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstdio>

#include "tests/needs.h"
#include "tests/thrown.h"
#include "twinkle/core/error.h"
#include "twinkle/core/files.h"

namespace twinkle {
namespace {

constexpr int64_t kNow = 1752148800;  // 2025-07-10 12:00

std::string render(std::string_view source, const Json& context = Json::object()) {
  return JinjaTemplate::parse(source)->render(context, {}, kNow).text;
}

std::string error_of(std::string_view source, const Json& context = Json::object(),
                     const RenderLimits& limits = {}) {
  return test::thrown([&] { JinjaTemplate::parse(source)->render(context, limits, kNow); });
}

TEST(Jinja, RendersTheGoldensOfRealTemplates) {
  const std::string root = test::test_data("chat-templates/");
  int rendered = 0, refused = 0;
  for (const auto& golden : read_json_file(root + "goldens.json")) {
    Json context = read_json_file(root + "contexts/" + golden.at("context").get<std::string>());
    for (const char* token : {"bos_token", "eos_token"}) context[token] = golden.at(token);
    if (!context.contains("tools")) context["tools"] = nullptr;
    const std::string name = golden.at("template").get<std::string>();
    const std::string source = read_file(root + name);
    if (golden.contains("error")) {
      EXPECT_NE(error_of(source, context), "") << name;
      ++refused;
    } else {
      EXPECT_EQ(render(source, context), golden.at("expected").get<std::string>())
          << name << " " << golden.at("context");
      ++rendered;
    }
  }
  EXPECT_EQ(rendered, 77);
  EXPECT_EQ(refused, 11);
}

TEST(Jinja, RendersTheCasesOfHuggingFaceJs) {
  const std::string path = test::test_data("chat-templates/huggingface.js-e2e.json");
  int count = 0;
  const Json cases = read_json_file(path);
  for (const auto& [name, item] : cases.items()) {
    EXPECT_EQ(render(item.at("chat_template").get<std::string>(), item.at("data")),
              item.at("target").get<std::string>())
        << name;
    ++count;
  }
  EXPECT_EQ(count, 12);
}

TEST(Jinja, RendersWhatJinja2Renders) {
  int count = 0;
  for (const auto& item : read_json_file(TWINKLE_SOURCE_DIR "/tests/text/jinja_cases.json")) {
    const std::string source = item.at("template").get<std::string>();
    const Json context = item.contains("context") ? item.at("context") : Json::object();
    if (item.contains("fails")) {
      EXPECT_NE(error_of(source, context), "") << source;
    } else {
      std::string got;
      try {
        got = render(source, context);
      } catch (const Error& e) {
        got = e.what();
      }
      EXPECT_EQ(got, item.at("expected").get<std::string>()) << source;
    }
    ++count;
  }
  EXPECT_GE(count, 300);
}

TEST(Jinja, NamesThePlaceOfAnError) {
  EXPECT_EQ(error_of("a\n{% if x %}"),
            "[chat template] line 2, column 11: unexpected end of the template: expected 'elif' or 'else' or "
            "'endif'");
  EXPECT_EQ(error_of("{{ 1 +\n  }}"), "[chat template] line 2, column 3: unexpected '}}'");
  EXPECT_EQ(error_of("{{ x | nosuch }}"),
            "[chat template] line 1, column 8: there is no filter named 'nosuch'");
  EXPECT_EQ(error_of("é\n  {{ x.y.z }}", {{"x", Json::object()}}),
            "[chat template] line 2, column 9: 'dict object' has no attribute 'y'");
  EXPECT_EQ(error_of("{{ 'a' + 1 }}"),
            "[chat template] line 1, column 8: can only concatenate str (not \"int\") to str");
  EXPECT_EQ(error_of("{{ raise_exception('Roles must alternate') }}"),
            "[chat template] Roles must alternate");
  EXPECT_EQ(error_of("{% include 'x' %}"),
            "[chat template] line 1, column 4: 'include' is not supported: a chat template stands alone");
  EXPECT_EQ(error_of("{{ [1, 2] | random }}"),
            "[chat template] line 1, column 13: random gives another text each time and is not supported");
  EXPECT_EQ(error_of("{{ {}.update({}) }}"),
            "[chat template] line 1, column 13: access to attribute 'update' of 'dict' object is unsafe.");
}

TEST(Jinja, StopsTemplatesThatTakeTooMuch) {
  EXPECT_NE(
      error_of("{% for i in range(100000) %}{% for j in range(100000) %}{{ j }}{% endfor %}{% endfor %}", {},
               {.max_steps = 100000}),
      "");
  EXPECT_NE(error_of("{{ 'x' * 100000000000 }}"), "");
  EXPECT_NE(
      error_of("{% for i in range(100) %}{{ 'x' * 1000 }}{% endfor %}", {}, {.max_output_bytes = 50000}), "");
  EXPECT_EQ(error_of("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}").find("[chat template]"), 0u);
  EXPECT_NE(error_of("{{ " + std::string(5000, '(') + "1" + std::string(5000, ')') + " }}"), "");
  std::string sum = "{{ 1";
  for (int i = 0; i < 100000; ++i) sum += "+1";
  EXPECT_NE(error_of(sum + " }}"), "");
  EXPECT_NE(
      error_of("{% set ns = namespace(x=[]) %}{% for i in range(1000) %}{% set ns.x = [ns.x] %}{% endfor %}"),
      "");
  // Circles are let go of, and do not print forever.
  EXPECT_EQ(render("{% set ns = namespace() %}{% set ns.me = ns %}{{ ns }}"),
            "<Namespace {'me': <Namespace {...}>}>");
}

// A template that shares what it holds can be small and spell something vast; what would be made or walked
// over is counted before it is.
TEST(Jinja, CountsWorkBeforeItIsDone) {
  const std::string nested =
      "{% set ns = namespace(x=[], y=[]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}"
      "{% set ns.y = [ns.y, ns.y] %}{% endfor %}";
  const std::string many = "(['a' * 1000] * 10**6)", words = "('ab ' * 10**7)";
  const std::string steps = "takes more than", bytes = "makes more than";
  for (const auto& [source, reason] : std::vector<std::pair<std::string, std::string>>{
           {nested + "{{ ns.x }}", steps},
           {nested + "{{ ns.x | tojson }}", steps},
           {nested + "{{ ns.x | tojson(indent=1000) }}", ""},
           {nested + "{{ '%s' % ns.x }}", steps},
           {nested + "{{ ns.x | join }}", steps},
           {nested + "{{ 'a' ~ ns.x }}", steps},
           {nested + "{{ ns.x == ns.y }}", steps},
           {nested + "{{ ns.x < ns.y }}", steps},
           {nested + "{{ ns.x in [ns.y] }}", steps},
           {nested + "{{ [ns.x, ns.y] | sort }}", steps},
           {nested + "{{ [ns.x] | map('string') | list }}", steps},
           {"{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
            bytes},
           {"{% set ns = namespace(x='a') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
            ""},
           {"{% set ns = namespace(x={'a': 1}) %}{% for i in range(60) %}{% set ns.x = dict(a=ns.x, b=ns.x) "
            "%}"
            "{% endfor %}{{ ns.x }}",
            steps},
           {"{% macro f(n) %}{{ 'a' * 10**8 }}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}", steps},
           {"{% set x = [0] * 10**6 %}{% for a in x %}{% for b in x %}{% for c in x %}{% for d in x %}{% "
            "endfor %}"
            "{% endfor %}{% endfor %}{% endfor %}",
            bytes},
           {"{{ " + many + " | map('upper') | list | length }}", steps},
           {"{{ " + many + " | map('replace', 'a', 'b') | list | length }}", steps},
           {"{{ " + many + " | join | length }}", bytes},
           {"{{ " + many + " | sort | length }}", ""},
           {"{{ (['a' * 10**6] * 10**5) | tojson | length }}", bytes},
           {"{{ (['a' * 10**6] * 10**5) | string | length }}", bytes},
           {"{{ ('a\n' * 10**7) | indent | length }}", steps},
           {"{{ " + words + ".split() | map('length') | sum }}", steps},
           {"{{ ('ab' * 10**7) | list | length }}", ""},
           {"{{ ('ab' * 10**7) | batch(2) | list | length }}", ""},
           {"{{ ([0] * 2 * 10**6) | batch(1) | list | length }}", bytes},
           {"{% for i in range(100000) %}{{ ('1' * 10**6) | int(0) }}{% endfor %}", ""},
           {"{% set t = 'a' * 10**6 %}{% for i in range(100000) %}{% if t is upper %}{% endif %}{% endfor %}",
            steps},
           {"{% set t = 'a' * 10**6 %}{{ (t * 20).count(t ~ 'b') }}{% for i in range(100000) %}"
            "{{ t.rfind('a' * 1000 ~ 'b') }}{% endfor %}",
            steps},
           {"{% set ns = namespace(x=dict([[0, 0]])) %}{% for i in range(60) %}{% set ns.x = "
            "namespace(a=ns.x, b=ns.x) %}"
            "{% endfor %}{{ ns.x }}",
            steps}}) {
    const std::string error = error_of(source);
    EXPECT_NE(error.find(reason.empty() ? " more than " : reason), std::string::npos) << source << "\n"
                                                                                      << error;
  }
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  std::printf("at most %ld MB\n", used.ru_maxrss / 1024);
  // What dies makes room: copies that replace each other are no more than the last.
  EXPECT_EQ(
      render("{% set ns = namespace(x=[]) %}{% for i in range(4000) %}{% set ns.x = [0] * 1000 %}{% endfor %}"
             "{{ ns.x | length }}"),
      "1000");
}

std::string marked(const Rendered& out) {
  std::string text;
  size_t at = 0;
  for (const TextSpan& span : out.input) {
    text += out.text.substr(at, static_cast<size_t>(span.begin) - at) + "[" +
            out.text.substr(static_cast<size_t>(span.begin), static_cast<size_t>(span.end - span.begin)) +
            "]";
    at = static_cast<size_t>(span.end);
  }
  return text + out.text.substr(at);
}

TEST(Jinja, MarksWhatCameFromTheContext) {
  const Json context = {{"x", "User"}, {"list", {"a", "b"}}, {"obj", {{"key", "v\"al"}}}, {"n", 5}};
  const auto mark = [&](std::string_view source) {
    return marked(JinjaTemplate::parse(source)->render(context));
  };
  EXPECT_EQ(mark("<{{ x }}>"), "<[User]>");
  EXPECT_EQ(mark("{{ '<' + x + '>' ~ n }}"), "<[User]>5");
  EXPECT_EQ(mark("{{ x[1:3] }}-{{ x[0] }}-{{ x[::-1] }}"), "[se]-[U]-[resU]");
  EXPECT_EQ(mark("{{ ('  ' + x + ' ') | trim }}{{ (x ~ 'a').upper() }}"), "[UserUSER]A");
  EXPECT_EQ(mark("{{ x.replace('se', '--') }}"), "[U]--[r]");
  EXPECT_EQ(mark("{{ list | join(', ') }}"), "[a], [b]");
  EXPECT_EQ(mark("{{ (x ~ ' is') | wordwrap(3, wrapstring='-') }}"), "[Use]-[r]-is");
  EXPECT_EQ(mark("{{ obj | tojson }}"), "{\"[key]\": \"[v\\\"al]\"}");
  EXPECT_EQ(mark("{% macro m(s) %}({{ s }}){% endmacro %}{% set y %}{{ m(x) }}{% endset %}{{ y }}"),
            "([User])");
  EXPECT_EQ(mark("{% for w in (x ~ ' b').split() %}{{ w }};{% endfor %}"), "[User];b;");
  EXPECT_EQ(mark("{{ '%s!' % x }}{{ '{}?'.format(x) }}"), "[User]![User]?");
  EXPECT_EQ(mark("{{ {'k': x} }}"), "{'k': '[User]'}");
  const auto own = JinjaTemplate::parse("{{ eos }}{{ x }}")->render(context, {}, -1, {{"eos", "</s>"}});
  EXPECT_EQ(marked(own), "</s>[User]");
}

TEST(Jinja, KnowsWhoReadTheClock) {
  const auto reads = [](const char* source, int64_t now = -1) {
    return JinjaTemplate::parse(source)->render(Json::object(), {}, now).read_clock;
  };
  EXPECT_TRUE(reads("{{ strftime_now('%Y') }}"));
  EXPECT_FALSE(reads("{{ strftime_now('%Y') }}", 0));
  EXPECT_FALSE(reads("{% if strftime_now is defined and false %}{{ strftime_now('%Y') }}{% endif %}"));
}

TEST(Jinja, FindsGenerationBlocksAndMessages) {
  const auto parsed = JinjaTemplate::parse(
      "{% for m in messages %}<{{ m.role }}>{% if m.role == 'a' %}{% generation %}{{ m.content }}$\n"
      "{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}");
  EXPECT_TRUE(parsed->has_generation_blocks());
  const auto out = parsed->render(
      {{"messages", {{{"role", "u"}, {"content", "hi"}}, {{"role", "a"}, {"content", "yo"}}}}});
  EXPECT_EQ(out.text, "<u>hi<a>yo$\n");
  ASSERT_EQ(out.generation.size(), 1u);
  EXPECT_EQ(out.generation[0].begin, 8);
  EXPECT_EQ(out.generation[0].end, 12);
  ASSERT_EQ(out.messages.size(), 2u);
  EXPECT_EQ(out.messages[0].span.end, 5);
  EXPECT_EQ(out.messages[1].message, 1);
  EXPECT_EQ(out.messages[1].span.begin, 5);
  EXPECT_EQ(out.messages[1].span.end, 12);
}

}  // namespace
}  // namespace twinkle
