// PIIFilter: published examples of each kind of number, their neighbours whose check digits are wrong, and
// what is written instead.
#include "tests/data/filter_testing.h"

namespace twinkle {
namespace {

// The names of what is found in a text.
Json found(const std::string& text) {
  const Trajectory got = edited_by("PIIFilter", talk(text, "ok"), {{"record_counts", true}});
  return quality::user_data_of(got, "pii_counts");
}
Json one(const char* entity) { return {{entity, 1}}; }

TEST(PIIFilter, FindsWhatItsCheckDigitsConfirm) {
  // Test numbers of the card networks (Luhn).
  for (const char* card : {"4111111111111111", "4111 1111 1111 1111", "5500-0055-5555-5559",
                           "378282246310005", "6011000990139424"})
    EXPECT_EQ(found(std::string("card ") + card + "."), one("CREDIT_CARD")) << card;
  for (const char* none :
       {"4111111111111112", "4111 1111 1111 1110", "12345678901234567", "2222222222222222"})
    EXPECT_EQ(found(std::string("no ") + none), nullptr) << none;
  // The examples of the IBAN registry.
  for (const char* iban : {"GB82 WEST 1234 5698 7654 32", "DE89370400440532013000",
                           "FR14 2004 1010 0505 0001 3M02 606", "NO9386011117947"})
    EXPECT_EQ(found(std::string("to ") + iban), one("IBAN_CODE")) << iban;
  EXPECT_EQ(found("GB83 WEST 1234 5698 7654 32"), nullptr);
  // The example of GB 11643.
  EXPECT_EQ(found("身份证11010519491231002X。"), one("CN_ID"));
  EXPECT_EQ(found("110105194912310021"), nullptr);
  // The NHS's and the Spanish interior ministry's examples.
  EXPECT_EQ(found("NHS 943 476 5919"), one("UK_NHS"));
  EXPECT_EQ(found("NHS 943 476 5918"), nullptr);
  EXPECT_EQ(found("DNI 12345678Z, NIE X1234567L"), Json({{"ES_NIF", 2}}));
  EXPECT_EQ(found("DNI 12345678A"), nullptr);
  EXPECT_EQ(found("SSN 219-09-9999"), one("US_SSN"));
  for (const char* none : {"000-12-3456", "666-12-3456", "912-12-3456", "219-00-9999", "219-09-0000"})
    EXPECT_EQ(found(none), nullptr) << none;
}

TEST(PIIFilter, FindsWhatItsShapeSays) {
  for (const char* mail : {"ann@example.com", "<a.b+c@mail.example.co.uk>", "写信给ann@example.com吧"})
    EXPECT_EQ(found(mail), one("EMAIL_ADDRESS")) << mail;
  for (const char* none : {"@override", "a@b", "user@localhost", "v1@2.3"})
    EXPECT_EQ(found(none), nullptr) << none;
  for (const char* phone : {"+44 20 7946 0958", "+1-202-555-0143", "(202) 555-0143", "202-555-0143"})
    EXPECT_EQ(found(std::string("call ") + phone), one("PHONE_NUMBER")) << phone;
  EXPECT_EQ(found("call +1 234"), nullptr);
  EXPECT_EQ(found("电话13800138000。"), one("CN_PHONE"));
  EXPECT_EQ(found("+86 138 0013 8000"), one("CN_PHONE"));
  EXPECT_EQ(found("12800138000"), nullptr);
  EXPECT_EQ(found("电话010-12345678"), one("CN_LANDLINE"));
  EXPECT_EQ(found("at 192.0.2.44."), one("IP_ADDRESS"));
  EXPECT_EQ(found("at 2001:db8::8a2e:370:7334"), one("IP_ADDRESS"));
  for (const char* none : {"127.0.0.1", "256.1.1.1", "1.2.3", "std::vector", "12:30:45:00", "1.2.3.4.5"})
    EXPECT_EQ(found(none), nullptr) << none;
  // Numbers of other kinds.
  for (const char* none :
       {"3.14159265358979", "2026-11-30", "1,000,000,000", "0x4111111111111111", "x=1234567890"})
    EXPECT_EQ(found(none), nullptr) << none;
}

TEST(PIIFilter, WritesWhatTheStrategySays) {
  const std::string text = "ann@example.com, bob@example.com, ann@example.com: 4111111111111111";
  const auto written = [&](const Json& options) {
    return edited("PIIFilter", talk(text, text), options)[0].at("content").get<std::string>();
  };
  EXPECT_EQ(written(nullptr), "<EMAIL_ADDRESS_1>, <EMAIL_ADDRESS_2>, <EMAIL_ADDRESS_1>: 411*********1111");
  EXPECT_EQ(written({{"entity_strategy", {{"EMAIL_ADDRESS", "redact"}, {"CREDIT_CARD", "redact"}}}}),
            ", , : ");
  EXPECT_EQ(written({{"default_strategy", "replace"}, {"entity_strategy", {{"EMAIL_ADDRESS", "mask"}}}}),
            "ann********.com, bob********.com, ann********.com: <CREDIT_CARD_1>");
  // sha256("saltann@example.com") begins so, by sha256sum.
  const std::string hashed =
      written({{"entity_strategy", {{"EMAIL_ADDRESS", "hash"}}}, {"hash_salt", "salt"}});
  EXPECT_EQ(hashed.substr(0, 29), "<EMAIL_ADDRESS:5c989201f82f>,");
  EXPECT_EQ(edited("PIIFilter", talk("q 219-09-9999", "a"))[0].at("content"), "q 219****9999");
  EXPECT_HAS(refused("PIIFilter", {{"entity_strategy", {{"EMAIL", "mask"}}}}), "no entity 'EMAIL'");
  EXPECT_HAS(refused("PIIFilter", {{"entity_strategy", {{"IBAN_CODE", "hide"}}}}),
             "'hide' of IBAN_CODE is none of mask, replace, redact, hash");
  EXPECT_HAS(refused("PIIPresidioFilter", nullptr), "PIIFilter finds addresses and numbers");
}

TEST(PIIFilter, LooksWhereTheRolesSay) {
  Trajectory conversation = talk("ann@example.com", "");
  conversation.messages[1] =
      Json::parse(R"({"role": "assistant", "content": [{"type": "text", "text": "ann@example.com"}],
      "reasoning_content": "bob@example.com", "tool_calls": [
        {"function": {"name": "mail", "arguments": "{\"to\": \"ann@example.com\", \"card\": 4111111111111111}"}},
        {"function": {"name": "mail", "arguments": {"to": ["bob@example.com"]}}}]})");
  conversation.messages.push_back(said("tool", "ann@example.com"));
  const Json got = edited("PIIFilter", conversation);
  EXPECT_EQ(got[0].at("content"), "<EMAIL_ADDRESS_1>");
  EXPECT_EQ(got[1].at("content")[0].at("text"), "<EMAIL_ADDRESS_1>");
  EXPECT_EQ(got[1].at("reasoning_content"), "<EMAIL_ADDRESS_2>");
  // Numbers stay what they are, so arguments stay JSON.
  EXPECT_EQ(got[1].at("tool_calls")[0].at("function").at("arguments"),
            R"({"to":"<EMAIL_ADDRESS_1>","card":4111111111111111})");
  EXPECT_EQ(got[1].at("tool_calls")[1].at("function").at("arguments").at("to")[0], "<EMAIL_ADDRESS_2>");
  EXPECT_EQ(got[2].at("content"), "ann@example.com");
  EXPECT_EQ(edited("PIIFilter", conversation, {{"roles", {"tool"}}})[0].at("content"), "ann@example.com");
  EXPECT_EQ(edited("PIIFilter", conversation, {{"roles", {"tool"}}})[2].at("content"), "<EMAIL_ADDRESS_1>");
}

}  // namespace
}  // namespace twinkle
