/*
 * layout_level0.h: every member of every public struct, with its offset and size, as
 * level 0 of the contract has them. Members are only ever appended: a row here is
 * added together with a member, and never changed.
 */
#ifndef TESTS_ABI_LAYOUT_LEVEL0_H
#define TESTS_ABI_LAYOUT_LEVEL0_H

/* clang-format off */
#define LAYOUT_LEVEL0(SIZE, FIELD) \
    /* status.h */ \
    SIZE(ftk_error, 1024) \
    FIELD(ftk_error, struct_size, 0, 4) \
    FIELD(ftk_error, status, 4, 4) \
    FIELD(ftk_error, message, 8, 1016) \
    /* provider.h */ \
    SIZE(ftk_str, 16) \
    FIELD(ftk_str, data, 0, 8) \
    FIELD(ftk_str, size, 8, 8) \
    SIZE(ftk_weight, 48) \
    FIELD(ftk_weight, struct_size, 0, 4) \
    FIELD(ftk_weight, type, 4, 4) \
    FIELD(ftk_weight, layout, 8, 4) \
    FIELD(ftk_weight, reserved0, 12, 4) \
    FIELD(ftk_weight, rows, 16, 8) \
    FIELD(ftk_weight, cols, 24, 8) \
    FIELD(ftk_weight, row_bytes, 32, 8) \
    FIELD(ftk_weight, data, 40, 8) \
    SIZE(ftk_bank_view, 64) \
    FIELD(ftk_bank_view, struct_size, 0, 4) \
    FIELD(ftk_bank_view, type, 4, 4) \
    FIELD(ftk_bank_view, layout, 8, 4) \
    FIELD(ftk_bank_view, experts, 12, 4) \
    FIELD(ftk_bank_view, rows, 16, 8) \
    FIELD(ftk_bank_view, cols, 24, 8) \
    FIELD(ftk_bank_view, row_bytes, 32, 8) \
    FIELD(ftk_bank_view, expert_stride, 40, 8) \
    FIELD(ftk_bank_view, base, 48, 8) \
    FIELD(ftk_bank_view, slots, 56, 8) \
    SIZE(ftk_activation, 40) \
    FIELD(ftk_activation, x, 0, 8) \
    FIELD(ftk_activation, packed, 8, 8) \
    FIELD(ftk_activation, x_stride, 16, 8) \
    FIELD(ftk_activation, rows, 24, 4) \
    FIELD(ftk_activation, cols, 28, 4) \
    FIELD(ftk_activation, formats, 32, 4) \
    FIELD(ftk_activation, reserved0, 36, 4) \
    SIZE(ftk_kv_view, 40) \
    FIELD(ftk_kv_view, struct_size, 0, 4) \
    FIELD(ftk_kv_view, type, 4, 4) \
    FIELD(ftk_kv_view, kv_heads, 8, 4) \
    FIELD(ftk_kv_view, key_dim, 12, 4) \
    FIELD(ftk_kv_view, value_dim, 16, 4) \
    FIELD(ftk_kv_view, page_tokens, 20, 4) \
    FIELD(ftk_kv_view, keys, 24, 8) \
    FIELD(ftk_kv_view, values, 32, 8) \
    SIZE(ftk_state_view, 24) \
    FIELD(ftk_state_view, struct_size, 0, 4) \
    FIELD(ftk_state_view, reserved0, 4, 4) \
    FIELD(ftk_state_view, base, 8, 8) \
    FIELD(ftk_state_view, slot_stride, 16, 8) \
    SIZE(ftk_step, 120) \
    FIELD(ftk_step, struct_size, 0, 4) \
    FIELD(ftk_step, required, 4, 4) \
    FIELD(ftk_step, rows, 8, 4) \
    FIELD(ftk_step, sequences, 12, 4) \
    FIELD(ftk_step, logit_count, 16, 4) \
    FIELD(ftk_step, block_stride, 20, 4) \
    FIELD(ftk_step, stream, 24, 8) \
    FIELD(ftk_step, tokens, 32, 8) \
    FIELD(ftk_step, positions, 40, 8) \
    FIELD(ftk_step, row_sequence, 48, 8) \
    FIELD(ftk_step, sequence_rows, 56, 8) \
    FIELD(ftk_step, state_slots, 64, 8) \
    FIELD(ftk_step, block_table, 72, 8) \
    FIELD(ftk_step, logit_rows, 80, 8) \
    FIELD(ftk_step, logits, 88, 8) \
    FIELD(ftk_step, layer_outputs, 96, 8) \
    FIELD(ftk_step, workspace, 104, 8) \
    FIELD(ftk_step, workspace_bytes, 112, 8) \
    SIZE(ftk_host, 72) \
    FIELD(ftk_host, struct_size, 0, 4) \
    FIELD(ftk_host, api_level, 4, 4) \
    FIELD(ftk_host, min_provider_level, 8, 4) \
    FIELD(ftk_host, reserved0, 12, 4) \
    FIELD(ftk_host, core_version, 16, 16) \
    FIELD(ftk_host, report, 32, 8) \
    FIELD(ftk_host, alloc, 40, 8) \
    FIELD(ftk_host, release, 48, 8) \
    FIELD(ftk_host, capability, 56, 8) \
    FIELD(ftk_host, query, 64, 8) \
    SIZE(ftk_tensor_info, 72) \
    FIELD(ftk_tensor_info, struct_size, 0, 4) \
    FIELD(ftk_tensor_info, type, 4, 4) \
    FIELD(ftk_tensor_info, n_dims, 8, 4) \
    FIELD(ftk_tensor_info, reserved0, 12, 4) \
    FIELD(ftk_tensor_info, dims, 16, 32) \
    FIELD(ftk_tensor_info, bytes, 48, 8) \
    FIELD(ftk_tensor_info, name, 56, 16) \
    SIZE(ftk_if_checkpoint_reader, 96) \
    FIELD(ftk_if_checkpoint_reader, struct_size, 0, 4) \
    FIELD(ftk_if_checkpoint_reader, level, 4, 4) \
    FIELD(ftk_if_checkpoint_reader, get_u64, 8, 8) \
    FIELD(ftk_if_checkpoint_reader, get_f64, 16, 8) \
    FIELD(ftk_if_checkpoint_reader, get_bool, 24, 8) \
    FIELD(ftk_if_checkpoint_reader, get_str, 32, 8) \
    FIELD(ftk_if_checkpoint_reader, array_size, 40, 8) \
    FIELD(ftk_if_checkpoint_reader, array_i64, 48, 8) \
    FIELD(ftk_if_checkpoint_reader, array_find_str, 56, 8) \
    FIELD(ftk_if_checkpoint_reader, tensor_count, 64, 8) \
    FIELD(ftk_if_checkpoint_reader, tensor, 72, 8) \
    FIELD(ftk_if_checkpoint_reader, find_tensor, 80, 8) \
    FIELD(ftk_if_checkpoint_reader, read, 88, 8) \
    SIZE(ftk_op_embed, 40) \
    FIELD(ftk_op_embed, table, 0, 8) \
    FIELD(ftk_op_embed, tokens, 8, 8) \
    FIELD(ftk_op_embed, y, 16, 8) \
    FIELD(ftk_op_embed, y_stride, 24, 8) \
    FIELD(ftk_op_embed, rows, 32, 4) \
    FIELD(ftk_op_embed, reserved0, 36, 4) \
    SIZE(ftk_op_rms_norm, 72) \
    FIELD(ftk_op_rms_norm, x, 0, 8) \
    FIELD(ftk_op_rms_norm, weight, 8, 8) \
    FIELD(ftk_op_rms_norm, y, 16, 8) \
    FIELD(ftk_op_rms_norm, x_row_stride, 24, 8) \
    FIELD(ftk_op_rms_norm, x_group_stride, 32, 8) \
    FIELD(ftk_op_rms_norm, y_row_stride, 40, 8) \
    FIELD(ftk_op_rms_norm, y_group_stride, 48, 8) \
    FIELD(ftk_op_rms_norm, rows, 56, 4) \
    FIELD(ftk_op_rms_norm, groups, 60, 4) \
    FIELD(ftk_op_rms_norm, n, 64, 4) \
    FIELD(ftk_op_rms_norm, eps, 68, 4) \
    SIZE(ftk_op_quantize, 40) \
    FIELD(ftk_op_quantize, act, 0, 40) \
    SIZE(ftk_op_matmul, 72) \
    FIELD(ftk_op_matmul, weight, 0, 8) \
    FIELD(ftk_op_matmul, act, 8, 40) \
    FIELD(ftk_op_matmul, y, 48, 8) \
    FIELD(ftk_op_matmul, y_stride, 56, 8) \
    FIELD(ftk_op_matmul, required, 64, 4) \
    FIELD(ftk_op_matmul, reserved0, 68, 4) \
    SIZE(ftk_op_rope, 56) \
    FIELD(ftk_op_rope, x, 0, 8) \
    FIELD(ftk_op_rope, positions, 8, 8) \
    FIELD(ftk_op_rope, row_stride, 16, 8) \
    FIELD(ftk_op_rope, head_stride, 24, 8) \
    FIELD(ftk_op_rope, theta, 32, 8) \
    FIELD(ftk_op_rope, rows, 40, 4) \
    FIELD(ftk_op_rope, heads, 44, 4) \
    FIELD(ftk_op_rope, rotary_dim, 48, 4) \
    FIELD(ftk_op_rope, reserved0, 52, 4) \
    SIZE(ftk_op_kv_append, 48) \
    FIELD(ftk_op_kv_append, step, 0, 8) \
    FIELD(ftk_op_kv_append, kv, 8, 8) \
    FIELD(ftk_op_kv_append, k, 16, 8) \
    FIELD(ftk_op_kv_append, v, 24, 8) \
    FIELD(ftk_op_kv_append, k_stride, 32, 8) \
    FIELD(ftk_op_kv_append, v_stride, 40, 8) \
    SIZE(ftk_op_attention, 64) \
    FIELD(ftk_op_attention, step, 0, 8) \
    FIELD(ftk_op_attention, kv, 8, 8) \
    FIELD(ftk_op_attention, q, 16, 8) \
    FIELD(ftk_op_attention, o, 24, 8) \
    FIELD(ftk_op_attention, q_row_stride, 32, 8) \
    FIELD(ftk_op_attention, q_head_stride, 40, 8) \
    FIELD(ftk_op_attention, o_row_stride, 48, 8) \
    FIELD(ftk_op_attention, heads, 56, 4) \
    FIELD(ftk_op_attention, scale, 60, 4) \
    SIZE(ftk_routing, 48) \
    FIELD(ftk_routing, experts, 0, 8) \
    FIELD(ftk_routing, weights, 8, 8) \
    FIELD(ftk_routing, offsets, 16, 8) \
    FIELD(ftk_routing, pairs, 24, 8) \
    FIELD(ftk_routing, rows, 32, 4) \
    FIELD(ftk_routing, used, 36, 4) \
    FIELD(ftk_routing, expert_count, 40, 4) \
    FIELD(ftk_routing, reserved0, 44, 4) \
    SIZE(ftk_op_route, 72) \
    FIELD(ftk_op_route, logits, 0, 8) \
    FIELD(ftk_op_route, logits_stride, 8, 8) \
    FIELD(ftk_op_route, routing, 16, 48) \
    FIELD(ftk_op_route, row_sequence, 64, 8) \
    SIZE(ftk_op_ensure, 56) \
    FIELD(ftk_op_ensure, bank, 0, 8) \
    FIELD(ftk_op_ensure, routing, 8, 48) \
    SIZE(ftk_op_grouped_matmul, 120) \
    FIELD(ftk_op_grouped_matmul, bank, 0, 8) \
    FIELD(ftk_op_grouped_matmul, act, 8, 40) \
    FIELD(ftk_op_grouped_matmul, routing, 48, 48) \
    FIELD(ftk_op_grouped_matmul, y, 96, 8) \
    FIELD(ftk_op_grouped_matmul, y_stride, 104, 8) \
    FIELD(ftk_op_grouped_matmul, act_divisor, 112, 4) \
    FIELD(ftk_op_grouped_matmul, reserved0, 116, 4) \
    SIZE(ftk_op_swiglu, 56) \
    FIELD(ftk_op_swiglu, gate, 0, 8) \
    FIELD(ftk_op_swiglu, up, 8, 8) \
    FIELD(ftk_op_swiglu, y, 16, 8) \
    FIELD(ftk_op_swiglu, gate_stride, 24, 8) \
    FIELD(ftk_op_swiglu, up_stride, 32, 8) \
    FIELD(ftk_op_swiglu, y_stride, 40, 8) \
    FIELD(ftk_op_swiglu, rows, 48, 4) \
    FIELD(ftk_op_swiglu, n, 52, 4) \
    SIZE(ftk_op_combine, 72) \
    FIELD(ftk_op_combine, contributions, 0, 8) \
    FIELD(ftk_op_combine, weights, 8, 8) \
    FIELD(ftk_op_combine, shared, 16, 8) \
    FIELD(ftk_op_combine, shared_gate, 24, 8) \
    FIELD(ftk_op_combine, residual, 32, 8) \
    FIELD(ftk_op_combine, y, 40, 8) \
    FIELD(ftk_op_combine, stride, 48, 8) \
    FIELD(ftk_op_combine, rows, 56, 4) \
    FIELD(ftk_op_combine, used, 60, 4) \
    FIELD(ftk_op_combine, n, 64, 4) \
    FIELD(ftk_op_combine, reserved0, 68, 4) \
    SIZE(ftk_op_gather_rows, 48) \
    FIELD(ftk_op_gather_rows, x, 0, 8) \
    FIELD(ftk_op_gather_rows, index, 8, 8) \
    FIELD(ftk_op_gather_rows, y, 16, 8) \
    FIELD(ftk_op_gather_rows, x_stride, 24, 8) \
    FIELD(ftk_op_gather_rows, y_stride, 32, 8) \
    FIELD(ftk_op_gather_rows, count, 40, 4) \
    FIELD(ftk_op_gather_rows, n, 44, 4) \
    SIZE(ftk_op_scale, 64) \
    FIELD(ftk_op_scale, x, 0, 8) \
    FIELD(ftk_op_scale, factors, 8, 8) \
    FIELD(ftk_op_scale, index, 16, 8) \
    FIELD(ftk_op_scale, y, 24, 8) \
    FIELD(ftk_op_scale, x_stride, 32, 8) \
    FIELD(ftk_op_scale, y_stride, 40, 8) \
    FIELD(ftk_op_scale, rows, 48, 4) \
    FIELD(ftk_op_scale, n, 52, 4) \
    FIELD(ftk_op_scale, factor_count, 56, 4) \
    FIELD(ftk_op_scale, required, 60, 4) \
    SIZE(ftk_if_operators, 136) \
    FIELD(ftk_if_operators, struct_size, 0, 4) \
    FIELD(ftk_if_operators, level, 4, 4) \
    FIELD(ftk_if_operators, activation_format, 8, 8) \
    FIELD(ftk_if_operators, activation_bytes, 16, 8) \
    FIELD(ftk_if_operators, embed, 24, 8) \
    FIELD(ftk_if_operators, rms_norm, 32, 8) \
    FIELD(ftk_if_operators, quantize, 40, 8) \
    FIELD(ftk_if_operators, matmul, 48, 8) \
    FIELD(ftk_if_operators, rope, 56, 8) \
    FIELD(ftk_if_operators, kv_append, 64, 8) \
    FIELD(ftk_if_operators, attention, 72, 8) \
    FIELD(ftk_if_operators, route, 80, 8) \
    FIELD(ftk_if_operators, grouped_matmul, 88, 8) \
    FIELD(ftk_if_operators, swiglu, 96, 8) \
    FIELD(ftk_if_operators, combine, 104, 8) \
    FIELD(ftk_if_operators, gather_rows, 112, 8) \
    FIELD(ftk_if_operators, scale, 120, 8) \
    FIELD(ftk_if_operators, ensure, 128, 8) \
    SIZE(ftk_cpu_launch, 48) \
    FIELD(ftk_cpu_launch, struct_size, 0, 4) \
    FIELD(ftk_cpu_launch, args_bytes, 4, 4) \
    FIELD(ftk_cpu_launch, name, 8, 16) \
    FIELD(ftk_cpu_launch, function, 24, 8) \
    FIELD(ftk_cpu_launch, args, 32, 8) \
    FIELD(ftk_cpu_launch, items, 40, 8) \
    SIZE(ftk_if_kernels, 16) \
    FIELD(ftk_if_kernels, struct_size, 0, 4) \
    FIELD(ftk_if_kernels, level, 4, 4) \
    FIELD(ftk_if_kernels, launch_cpu, 8, 8) \
    SIZE(ftk_capability_need, 24) \
    FIELD(ftk_capability_need, name, 0, 16) \
    FIELD(ftk_capability_need, min_value, 16, 8) \
    SIZE(ftk_variant, 32) \
    FIELD(ftk_variant, name, 0, 16) \
    FIELD(ftk_variant, needs, 16, 8) \
    FIELD(ftk_variant, need_count, 24, 8) \
    SIZE(ftk_variant_table, 40) \
    FIELD(ftk_variant_table, struct_size, 0, 4) \
    FIELD(ftk_variant_table, variant_stride, 4, 4) \
    FIELD(ftk_variant_table, operation, 8, 16) \
    FIELD(ftk_variant_table, variants, 24, 8) \
    FIELD(ftk_variant_table, variant_count, 32, 8) \
    SIZE(ftk_identity, 160) \
    FIELD(ftk_identity, struct_size, 0, 4) \
    FIELD(ftk_identity, api_level, 4, 4) \
    FIELD(ftk_identity, min_host_level, 8, 4) \
    FIELD(ftk_identity, reserved0, 12, 4) \
    FIELD(ftk_identity, name, 16, 16) \
    FIELD(ftk_identity, version, 32, 16) \
    FIELD(ftk_identity, core_range, 48, 16) \
    FIELD(ftk_identity, architectures, 64, 16) \
    FIELD(ftk_identity, containers, 80, 16) \
    FIELD(ftk_identity, backends, 96, 16) \
    FIELD(ftk_identity, license, 112, 16) \
    FIELD(ftk_identity, device_code, 128, 16) \
    FIELD(ftk_identity, provides, 144, 16) \
    SIZE(ftk_match_in, 56) \
    FIELD(ftk_match_in, struct_size, 0, 4) \
    FIELD(ftk_match_in, reserved0, 4, 4) \
    FIELD(ftk_match_in, architecture, 8, 16) \
    FIELD(ftk_match_in, container, 24, 16) \
    FIELD(ftk_match_in, backend, 40, 16) \
    SIZE(ftk_match_out, 8) \
    FIELD(ftk_match_out, struct_size, 0, 4) \
    FIELD(ftk_match_out, claimed, 4, 4) \
    SIZE(ftk_create_in, 72) \
    FIELD(ftk_create_in, struct_size, 0, 4) \
    FIELD(ftk_create_in, reserved0, 4, 4) \
    FIELD(ftk_create_in, architecture, 8, 16) \
    FIELD(ftk_create_in, container, 24, 16) \
    FIELD(ftk_create_in, backend, 40, 16) \
    FIELD(ftk_create_in, options, 56, 16) \
    SIZE(ftk_model_info, 48) \
    FIELD(ftk_model_info, struct_size, 0, 4) \
    FIELD(ftk_model_info, layers, 4, 4) \
    FIELD(ftk_model_info, hidden, 8, 4) \
    FIELD(ftk_model_info, vocabulary, 12, 4) \
    FIELD(ftk_model_info, context, 16, 4) \
    FIELD(ftk_model_info, end_token_count, 20, 4) \
    FIELD(ftk_model_info, end_tokens, 24, 8) \
    FIELD(ftk_model_info, pretokenizer, 32, 16) \
    SIZE(ftk_tensor_plan, 56) \
    FIELD(ftk_tensor_plan, name, 0, 16) \
    FIELD(ftk_tensor_plan, tensor, 16, 8) \
    FIELD(ftk_tensor_plan, offset, 24, 8) \
    FIELD(ftk_tensor_plan, rows, 32, 8) \
    FIELD(ftk_tensor_plan, cols, 40, 8) \
    FIELD(ftk_tensor_plan, source, 48, 4) \
    FIELD(ftk_tensor_plan, type, 52, 4) \
    SIZE(ftk_bank_part, 72) \
    FIELD(ftk_bank_part, part, 0, 16) \
    FIELD(ftk_bank_part, tensor, 16, 8) \
    FIELD(ftk_bank_part, offset, 24, 8) \
    FIELD(ftk_bank_part, expert_stride, 32, 8) \
    FIELD(ftk_bank_part, rows, 40, 8) \
    FIELD(ftk_bank_part, cols, 48, 8) \
    FIELD(ftk_bank_part, layer, 56, 4) \
    FIELD(ftk_bank_part, experts, 60, 4) \
    FIELD(ftk_bank_part, used, 64, 4) \
    FIELD(ftk_bank_part, type, 68, 4) \
    SIZE(ftk_kv_layer, 16) \
    FIELD(ftk_kv_layer, layer, 0, 4) \
    FIELD(ftk_kv_layer, kv_heads, 4, 4) \
    FIELD(ftk_kv_layer, key_dim, 8, 4) \
    FIELD(ftk_kv_layer, value_dim, 12, 4) \
    SIZE(ftk_plan, 96) \
    FIELD(ftk_plan, struct_size, 0, 4) \
    FIELD(ftk_plan, tensor_stride, 4, 4) \
    FIELD(ftk_plan, tensors, 8, 8) \
    FIELD(ftk_plan, tensor_count, 16, 8) \
    FIELD(ftk_plan, bank_parts, 24, 8) \
    FIELD(ftk_plan, bank_part_count, 32, 8) \
    FIELD(ftk_plan, kv_layers, 40, 8) \
    FIELD(ftk_plan, kv_layer_count, 48, 8) \
    FIELD(ftk_plan, bank_part_stride, 56, 4) \
    FIELD(ftk_plan, kv_layer_stride, 60, 4) \
    FIELD(ftk_plan, state_bytes, 64, 8) \
    FIELD(ftk_plan, bucket_rows, 72, 8) \
    FIELD(ftk_plan, bucket_workspace_bytes, 80, 8) \
    FIELD(ftk_plan, bucket_count, 88, 8) \
    SIZE(ftk_weight_views, 56) \
    FIELD(ftk_weight_views, struct_size, 0, 4) \
    FIELD(ftk_weight_views, weight_stride, 4, 4) \
    FIELD(ftk_weight_views, weights, 8, 8) \
    FIELD(ftk_weight_views, weight_count, 16, 8) \
    FIELD(ftk_weight_views, banks, 24, 8) \
    FIELD(ftk_weight_views, bank_count, 32, 8) \
    FIELD(ftk_weight_views, bank_stride, 40, 4) \
    FIELD(ftk_weight_views, reserved0, 44, 4) \
    FIELD(ftk_weight_views, computed, 48, 8) \
    SIZE(ftk_cache_views, 48) \
    FIELD(ftk_cache_views, struct_size, 0, 4) \
    FIELD(ftk_cache_views, kv_stride, 4, 4) \
    FIELD(ftk_cache_views, kv, 8, 8) \
    FIELD(ftk_cache_views, kv_count, 16, 8) \
    FIELD(ftk_cache_views, state, 24, 24) \
    SIZE(ftk_prepare_in, 24) \
    FIELD(ftk_prepare_in, struct_size, 0, 4) \
    FIELD(ftk_prepare_in, max_rows, 4, 4) \
    FIELD(ftk_prepare_in, chosen, 8, 8) \
    FIELD(ftk_prepare_in, chosen_count, 16, 8) \
    SIZE(ftk_prepare_out, 8) \
    FIELD(ftk_prepare_out, struct_size, 0, 4) \
    FIELD(ftk_prepare_out, graph_safe, 4, 4) \
    SIZE(ftk_chat_turn, 32) \
    FIELD(ftk_chat_turn, role, 0, 16) \
    FIELD(ftk_chat_turn, content, 16, 16) \
    SIZE(ftk_chat_in, 40) \
    FIELD(ftk_chat_in, struct_size, 0, 4) \
    FIELD(ftk_chat_in, turn_stride, 4, 4) \
    FIELD(ftk_chat_in, turns, 8, 8) \
    FIELD(ftk_chat_in, turn_count, 16, 8) \
    FIELD(ftk_chat_in, required, 24, 4) \
    FIELD(ftk_chat_in, hint, 28, 4) \
    FIELD(ftk_chat_in, open_answer, 32, 4) \
    FIELD(ftk_chat_in, reserved0, 36, 4) \
    SIZE(ftk_chat_out, 32) \
    FIELD(ftk_chat_out, struct_size, 0, 4) \
    FIELD(ftk_chat_out, message_size, 4, 4) \
    FIELD(ftk_chat_out, message, 8, 8) \
    FIELD(ftk_chat_out, piece, 16, 8) \
    FIELD(ftk_chat_out, user, 24, 8) \
    SIZE(ftk_provider, 104) \
    FIELD(ftk_provider, struct_size, 0, 4) \
    FIELD(ftk_provider, reserved0, 4, 4) \
    FIELD(ftk_provider, identity, 8, 8) \
    FIELD(ftk_provider, variants, 16, 8) \
    FIELD(ftk_provider, variant_table_count, 24, 8) \
    FIELD(ftk_provider, match, 32, 8) \
    FIELD(ftk_provider, create, 40, 8) \
    FIELD(ftk_provider, plan_weights, 48, 8) \
    FIELD(ftk_provider, load_weights, 56, 8) \
    FIELD(ftk_provider, attach_cache, 64, 8) \
    FIELD(ftk_provider, prepare_for_runtime, 72, 8) \
    FIELD(ftk_provider, run, 80, 8) \
    FIELD(ftk_provider, destroy, 88, 8) \
    FIELD(ftk_provider, format_chat, 96, 8) \
    /* freetoken.h */ \
    SIZE(ftk_open_options, 56) \
    FIELD(ftk_open_options, struct_size, 0, 4) \
    FIELD(ftk_open_options, stop_after, 4, 4) \
    FIELD(ftk_open_options, progress, 8, 8) \
    FIELD(ftk_open_options, user, 16, 8) \
    FIELD(ftk_open_options, log, 24, 8) \
    FIELD(ftk_open_options, log_user, 32, 8) \
    FIELD(ftk_open_options, log_level, 40, 4) \
    FIELD(ftk_open_options, reserved0, 44, 4) \
    FIELD(ftk_open_options, provider_record, 48, 8) \
    SIZE(ftk_message, 32) \
    FIELD(ftk_message, struct_size, 0, 4) \
    FIELD(ftk_message, reserved0, 4, 4) \
    FIELD(ftk_message, role, 8, 8) \
    FIELD(ftk_message, content, 16, 8) \
    FIELD(ftk_message, content_size, 24, 8) \
    SIZE(ftk_logit_bias, 8) \
    FIELD(ftk_logit_bias, id, 0, 4) \
    FIELD(ftk_logit_bias, bias, 4, 4) \
    SIZE(ftk_sampling, 56) \
    FIELD(ftk_sampling, struct_size, 0, 4) \
    FIELD(ftk_sampling, top_k, 4, 4) \
    FIELD(ftk_sampling, temperature, 8, 4) \
    FIELD(ftk_sampling, top_p, 12, 4) \
    FIELD(ftk_sampling, min_p, 16, 4) \
    FIELD(ftk_sampling, repetition_penalty, 20, 4) \
    FIELD(ftk_sampling, presence_penalty, 24, 4) \
    FIELD(ftk_sampling, frequency_penalty, 28, 4) \
    FIELD(ftk_sampling, seed, 32, 8) \
    FIELD(ftk_sampling, biases, 40, 8) \
    FIELD(ftk_sampling, bias_count, 48, 4) \
    FIELD(ftk_sampling, penalty_last, 52, 4) \
    SIZE(ftk_generate_result, 72) \
    FIELD(ftk_generate_result, struct_size, 0, 4) \
    FIELD(ftk_generate_result, finish, 4, 4) \
    FIELD(ftk_generate_result, prompt_tokens, 8, 8) \
    FIELD(ftk_generate_result, tokens, 16, 8) \
    FIELD(ftk_generate_result, prefill_steps, 24, 8) \
    FIELD(ftk_generate_result, decode_steps, 32, 8) \
    FIELD(ftk_generate_result, graph_replays, 40, 8) \
    FIELD(ftk_generate_result, prefill_seconds, 48, 8) \
    FIELD(ftk_generate_result, decode_seconds, 56, 8) \
    FIELD(ftk_generate_result, hash, 64, 8) \
    SIZE(ftk_event, 168) \
    FIELD(ftk_event, struct_size, 0, 4) \
    FIELD(ftk_event, type, 4, 4) \
    FIELD(ftk_event, request, 8, 8) \
    FIELD(ftk_event, text, 16, 8) \
    FIELD(ftk_event, text_size, 24, 8) \
    FIELD(ftk_event, token, 32, 4) \
    FIELD(ftk_event, logprob, 36, 4) \
    FIELD(ftk_event, top_count, 40, 4) \
    FIELD(ftk_event, status, 44, 4) \
    FIELD(ftk_event, top_ids, 48, 8) \
    FIELD(ftk_event, top_logprobs, 56, 8) \
    FIELD(ftk_event, message, 64, 8) \
    FIELD(ftk_event, result, 72, 72) \
    FIELD(ftk_event, storage, 144, 8) \
    FIELD(ftk_event, reused_tokens, 152, 8) \
    FIELD(ftk_event, preemptions, 160, 8) \
    SIZE(ftk_request, 168) \
    FIELD(ftk_request, struct_size, 0, 4) \
    FIELD(ftk_request, max_tokens, 4, 4) \
    FIELD(ftk_request, tokens, 8, 8) \
    FIELD(ftk_request, token_count, 16, 8) \
    FIELD(ftk_request, text, 24, 8) \
    FIELD(ftk_request, text_size, 32, 8) \
    FIELD(ftk_request, messages, 40, 8) \
    FIELD(ftk_request, message_count, 48, 8) \
    FIELD(ftk_request, stop, 56, 8) \
    FIELD(ftk_request, stop_count, 64, 8) \
    FIELD(ftk_request, text_flags, 72, 4) \
    FIELD(ftk_request, chat_flags, 76, 4) \
    FIELD(ftk_request, ignore_end, 80, 4) \
    FIELD(ftk_request, logprobs, 84, 4) \
    FIELD(ftk_request, priority, 88, 4) \
    FIELD(ftk_request, chunk, 92, 4) \
    FIELD(ftk_request, sampling, 96, 56) \
    FIELD(ftk_request, on_event, 152, 8) \
    FIELD(ftk_request, user, 160, 8) \
    SIZE(ftk_generate_options, 88) \
    FIELD(ftk_generate_options, struct_size, 0, 4) \
    FIELD(ftk_generate_options, max_tokens, 4, 4) \
    FIELD(ftk_generate_options, ignore_end, 8, 4) \
    FIELD(ftk_generate_options, chunk, 12, 4) \
    FIELD(ftk_generate_options, sampling, 16, 56) \
    FIELD(ftk_generate_options, on_token, 72, 8) \
    FIELD(ftk_generate_options, user, 80, 8) \
    SIZE(ftk_evaluate_options, 32) \
    FIELD(ftk_evaluate_options, struct_size, 0, 4) \
    FIELD(ftk_evaluate_options, chunk, 4, 4) \
    FIELD(ftk_evaluate_options, on_logits, 8, 8) \
    FIELD(ftk_evaluate_options, user, 16, 8) \
    FIELD(ftk_evaluate_options, want_layers, 24, 4) \
    FIELD(ftk_evaluate_options, reserved0, 28, 4)
/* clang-format on */

#endif
