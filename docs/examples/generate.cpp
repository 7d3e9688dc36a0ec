/* generate.cpp: generate.c in C++11, with owners that release by themselves.
 *
 *   c++ generate.cpp -o generate $(pkg-config --cflags --libs freetoken)
 *   ./generate CONFIG.yaml MODEL.gguf "Once upon a time"
 */
#include <freetoken/freetoken.h>

#include <iostream>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

struct release {
    void operator()(ftk_config *config) const {
        ftk_config_free(config);
    }
    void operator()(ftk_engine *engine) const {
        ftk_engine_close(engine);
    }
};
using config_owner = std::unique_ptr<ftk_config, release>;
using engine_owner = std::unique_ptr<ftk_engine, release>;

static void check(ftk_status status, const ftk_error &err) {
    if (status != FTK_OK) throw std::runtime_error(err.message);
}

static engine_owner open(const char *config_path, const char *model_path) {
    ftk_error err = FTK_ERROR_INIT;
    ftk_config *config = nullptr;
    ftk_engine *engine = nullptr;
    check(ftk_config_load(config_path, &config, &err), err);
    config_owner owner(config);
    check(ftk_engine_open(config, model_path, nullptr, &engine, &err), err);
    return engine_owner(engine);
}

static std::vector<int32_t> tokenize(const ftk_engine *engine, const std::string &text) {
    ftk_error err = FTK_ERROR_INIT;
    std::size_t count = 0;
    check(ftk_tokenize(engine, text.data(), text.size(), 0, nullptr, 0, &count, &err), err);
    std::vector<int32_t> ids(count);
    check(ftk_tokenize(engine, text.data(), text.size(), 0, ids.data(), count, &count, &err), err);
    return ids;
}

int main(int argc, char **argv) try {
    if (argc != 4) return 2;
    ftk_error err = FTK_ERROR_INIT;
    engine_owner engine = open(argv[1], argv[2]);
    std::vector<int32_t> prompt = tokenize(engine.get(), argv[3]);
    ftk_generate_options options = FTK_GENERATE_OPTIONS_INIT;
    options.max_tokens = 64;
    options.on_token = [](void *, int32_t, const char *text, std::size_t size) {
        return std::cout.write(text, static_cast<std::streamsize>(size)) ? 0 : 1;
    };
    check(ftk_generate(engine.get(), prompt.data(), prompt.size(), &options, nullptr, &err), err);
    std::cout << std::endl;
    return 0;
} catch (const std::exception &error) {
    std::cerr << error.what() << std::endl;
    return 1;
}
