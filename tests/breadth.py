"""The wide tables of which only some cases run by default; the others get the marker `breadth`.

`pytest` alone must end within 6 minutes on two cores. What is listed here took most of the time:
each number is the share of a function's cases that stay, 1 in so many; 0: none does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import count

import pytest

GOLDEN_RATIO = (1 + 5**0.5) / 2
ONE_IN: Mapping[str, int] = {
    "check/test_certificate.py::test_a_changed_model_is_refused": 5,
    "check/test_certificate.py::test_a_forged_certificate_is_refused": 2,
    "check/test_certified_models.py::test_the_command": 0,
    "check/test_replay.py::test_every_rule_is_replayed": 17,
    "cost/test_clock.py::test_noise_alone_is_rarely_taken_for_speed": 2,
    "generate/test_axes.py::test_what_is_asked_of_axes": 4,
    "generate/test_bank.py::test_a_batch_is_what_one_by_one_gives": 25,
    "generate/test_bank.py::test_equations_hold_over_floats": 2,
    "generate/test_biases.py::test_claims_with_a_bias_are_rules_for_any_geometry": 0,
    "generate/test_closing.py::test_a_law_of_scalars_is_none_of_matrices": 0,
    "generate/test_dims.py::test_both_sides_take_them": 2,
    "generate/test_journal.py::test_a_disk_that_is_full_for_a_while": 2,
    "generate/test_partial.py::test_the_classical_pairs_are_found": 6,
    "generate/test_run.py::test_brute_force_follows_from_the_library": 0,
    "generate/test_run.py::test_every_reading_is_a_rule": 24,
    "generate/test_run.py::test_the_account_adds_up": 0,
    "generate/test_traps.py::test_a_trap_does_not_follow": 4,
    "generate/test_widen.py::test_a_polynomial_law_is_one_of_integers": 2,
    "generate/test_workers.py::test_a_run_that_is_stopped_leaves_no_process_and_goes_on": 3,
    "generate/test_workers.py::test_an_error_of_ones_own_comes_through": 0,
    "generate/test_workers.py::test_more_jobs_than_cores": 0,
    "kernels/test_enter.py::test_without_it_the_same_is_computed": 2,
    "kernels/test_flat.py::test_sums_in_short_blocks": 8,
    "kernels/test_flat.py::test_the_same": 20,
    "kernels/test_layout.py::test_a_convolution_reads_and_writes_any_layout": 3,
    "kernels/test_operators.py::test_its_kernel_computes_it": 10,
    "kernels/test_operators.py::test_tiles_of_any_extent": 5,
    "kernels/test_periods.py::test_it_reads_the_right_places": 2,
    "kernels/test_prefetch.py::test_the_part_that_comes_next_is_asked_for": 12,
    "kernels/test_prefetch.py::test_what_is_read_in_steps_is_asked_for": 8,
    "kernels/test_schedule.py::test_no_schedule_changes_what_is_computed": 11,
    "kernels/test_stages.py::test_no_schedules_change_what_is_computed": 3,
    "kernels/test_strassen.py::test_it_is_the_product": 24,
    "kernels/test_strassen.py::test_no_row_rounds_by_another_ones_size": 12,
    "kernels/test_tile.py::test_a_tile_of_registers_is_what_is_summed": 2,
    "kernels/test_vector_math.py::test_errors_are_as_stated": 2,
    "kernels/test_vectors.py::test_the_largest_of_all_is_none_where_one_is": 8,
    "kernels/test_vectors.py::test_tiles_are_turned": 2,
    "kernels/test_windows.py::test_windows": 20,
    "kernels/test_winograd.py::test_along_one_dimension": 7,
    "kernels/test_winograd.py::test_in_three_dimensions": 16,
    "kernels/test_winograd.py::test_it_is_the_convolution": 25,
    "kernels/test_winograd.py::test_windows_that_are_apart": 21,
    "onnx_io/test_checker.py::test_it_says_what_a_fork_says": 2,
    "onnx_io/test_checker.py::test_one_that_died_is_done_without": 2,
    "onnx_io/test_dynamic.py::test_a_computed_size_is_computed_again": 14,
    "onnx_io/test_lossless.py::test_a_file_comes_out_as_it_was": 2,
    "onnx_io/test_lossless.py::test_tensors_of_every_type": 6,
    "onnx_io/test_mutants.py::test_mutant": 22,
    "onnx_io/test_mutants.py::test_the_originals_are_accepted": 6,
    "onnx_io/test_older.py::test_they_have_expressions": 2,
    "onnx_io/test_properties.py::test_every_operator_comes_back": 2,
    "onnx_io/test_scale.py::test_a_chain_of_twenty_thousand_nodes": 0,
    "onnx_io/test_suite_roundtrip.py::test_every_case_survives": 0,
    "onnx_io/test_validate.py::test_what_the_checker_does_not_survive": 4,
    "onnx_io/test_write.py::test_memory_for_weights_inside_the_file": 0,
    "ops/test_against_runtime.py::test_the_expression_agrees": 6,
    "ops/test_backend_suite.py::test_case": 35,
    "ops/test_elementwise_types.py::test_agrees_with_onnx": 5,
    "ops/test_layout.py::test_a_thousand_parts_are_joined_without_deep_recursion": 0,
    "partial/test_columns.py::test_is_as_the_comparison_of_every_element": 2,
    "partial/test_enumerate.py::test_it_is_found_and_is_right": 9,
    "partial/test_mutants.py::test_the_account_of_two_operators": 2,
    "partial/test_mutants.py::test_what_is_dropped_is_never_cheaper": 2,
    "partial/test_own.py::test_a_pair_that_is_not_the_rules_shows_nothing": 4,
    "partial/test_own.py::test_a_window_goes_on_where_it_was": 0,
    "partial/test_own.py::test_rules_of_a_model_of_any_name_can_be_read": 0,
    "partial/test_own.py::test_they_are_rules_that_are_proved": 0,
    "partial/test_own_contents.py::test_a_model_that_is_changed_in_place": 0,
    "partial/test_own_journal.py::test_generate_says_what_of_a_journal_was_not_so": 0,
    "partial/test_pairs.py::test_corrections_at_random_sizes": 25,
    "partial/test_pairs.py::test_families": 18,
    "partial/test_pairs.py::test_no_larger_box_is_proved": 4,
    "partial/test_regions.py::test_of_enumerated_pairs": 3,
    "partial/test_search.py::test_every_one_is_proved_and_says_where_it_is_right": 8,
    "partial/test_stacked.py::test_random_joins": 0,
    "partial/test_stacked.py::test_the_same_regions": 12,
    "pipeline/test_interrupted.py::test_a_killed_command_leaves_no_model_and_a_store_that_works": 0,
    "pipeline/test_interrupted.py::test_a_second_interrupt_leaves_nothing": 0,
    "pipeline/test_interrupted.py::test_an_interrupt_writes_the_best_so_far": 3,
    "pipeline/test_interrupted.py::test_the_end_of_the_budget_writes_the_best_so_far": 0,
    "pipeline/test_own_rules.py::test_a_certificate_of_an_own_rule_is_proved_again": 0,
    "pipeline/test_own_rules.py::test_a_mutant_that_cannot_be_tried_is_left_out": 0,
    "pipeline/test_own_rules.py::test_a_rule_that_cannot_be_tried_is_not_trusted": 0,
    "pipeline/test_own_rules.py::test_a_rule_whose_sides_do_not_fit_together": 4,
    "pipeline/test_verify.py::test_near_misses_are_not_proved": 25,
    "plan/test_attention.py::test_one_kernel_computes_it": 7,
    "plan/test_by_channel.py::test_sums_are_what_they_were": 4,
    "plan/test_channels.py::test_it_is_computed": 14,
    "plan/test_channels_first.py::test_what_is_between": 4,
    "plan/test_compile.py::test_borders_are_zeros_in_memory_that_was_another_s": 2,
    "plan/test_compile.py::test_it_computes_the_model_at_any_size": 3,
    "plan/test_contrib.py::test_as_onnxruntime_computes_it": 9,
    "plan/test_contrib.py::test_of_odd_nodes_a_clear_error": 4,
    "plan/test_contrib.py::test_others_run_in_onnxruntime": 2,
    "plan/test_cuda.py::test_attention_is_one_kernel": 3,
    "plan/test_cuda.py::test_every_option": 2,
    "plan/test_cuda_across.py::test_every_option": 2,
    "plan/test_cuda_cells.py::test_every_way": 2,
    "plan/test_cuda_few.py::test_every_way": 9,
    "plan/test_cuda_ranking.py::test_the_first_ways_are_nearly_the_best": 2,
    "plan/test_export.py::test_a_program_without_python": 4,
    "plan/test_export.py::test_c_gets_the_same_bits": 16,
    "plan/test_export.py::test_names_of_files_become_names_in_c": 5,
    "plan/test_export.py::test_several_may_be_open_and_run_at_once": 2,
    "plan/test_extremes.py::test_long_chains": 3,
    "plan/test_forms.py::test_it_is_computed": 14,
    "plan/test_forms.py::test_transposed_convolutions": 0,
    "plan/test_forms.py::test_two_threads_give_the_same_each_time": 3,
    "plan/test_inline.py::test_a_weight_that_is_read_beside_its_product": 2,
    "plan/test_patch.py::test_corrections": 5,
    "plan/test_patch.py::test_models": 2,
    "plan/test_profile.py::test_each_call_is_timed": 2,
    "plan/test_ready.py::test_it_is_found_again": 2,
    "plan/test_ready.py::test_what_is_damaged_is_compiled_again": 2,
    "plan/test_recurrent.py::test_batches_may_come_first": 2,
    "plan/test_recurrent.py::test_both_directions_at_once_and_one_after_the_other": 6,
    "plan/test_recurrent.py::test_float64": 3,
    "plan/test_recurrent.py::test_steps": 13,
    "plan/test_spread.py::test_long_strides_are_convolutions": 12,
    "plan/test_spread.py::test_those_of_short_strides_where_that_pays": 4,
    "plan/test_streams.py::test_no_memory_is_used_for_two_things_at_once": 0,
    "plan/test_taps.py::test_parts_are_the_whole": 6,
    "plan/test_targets.py::test_its_code_computes_the_model": 4,
    "plan/test_targets.py::test_its_code_is_for_it": 2,
    "plan/test_tune.py::test_every_option_computes_the_same": 3,
    "plan/test_ways.py::test_matrices_of_short_elements_are_turned": 3,
    "plan/test_ways.py::test_of_very_many_operands": 8,
    "plan/test_ways.py::test_pictures_with_channels_last_are_turned": 2,
    "plan/test_ways.py::test_what_lies_steps_apart": 4,
    "plan/test_zeros.py::test_others_are_computed_by_parts_and_in_tiles": 2,
    "plan/test_zeros.py::test_zeros_stay": 6,
    "rules/test_counterexample.py::test_it_is_the_smallest": 4,
    "rules/test_counterexample.py::test_no_number_can_be_zero_instead": 6,
    "rules/test_counterexample.py::test_what_it_says_is_so": 16,
    "rules/test_cramped.py::test_what_is_wrong_where_all_sizes_are_alike": 2,
    "rules/test_exactness.py::test_the_class_of_a_rule_is_computed": 25,
    "rules/test_exactness.py::test_what_was_computed_is_computed_again": 10,
    "rules/test_library.py::test_a_generated_rule_passes_a_trial_on_other_shapes": 23,
    "rules/test_library.py::test_a_rule_passes_its_trial": 25,
    "rules/test_library.py::test_the_matcher_finds_a_rule_s_instances_and_builds_the_same": 16,
    "rules/test_near.py::test_what_holds_at_one_size_only_is_refuted_near_it": 2,
    "rules/test_random.py::test_near_some_nodes_are_the_matches_that_cover_one": 8,
    "rules/test_random.py::test_rewrites_keep_the_graph_s_values": 5,
    "rules/test_readable.py::test_random_conditions_hold_where_they_did": 0,
    "rules/test_stated.py::test_what_ships_as_proved_is": 4,
    "rules/test_trial.py::test_a_rule_of_one_size_is_tried_at_what_sizes_there_are": 3,
    "rules/test_trial.py::test_all_draws_at_once_are_each_by_itself": 17,
    "rules/test_unsound.py::test_a_wrong_rule_is_refuted": 3,
    "search/test_walk.py::test_random_rewrites_change_nothing": 3,
    "te/test_examples.py::test_field": 8,
    "te/test_examples.py::test_reals": 3,
    "te/test_interpret.py::test_floats": 0,
    "te/test_interpret.py::test_integers_wrap": 0,
    "te/test_interpret.py::test_patterns": 4,
    "te/test_limits.py::test_it_is_fast": 2,
    "te/test_limits.py::test_many_operands_and_terms": 0,
    "verifier/test_arguments.py::test_what_is_like_it_and_false_is_not": 3,
    "verifier/test_axioms.py::test_axioms_are_proved_and_balanced": 6,
    "verifier/test_axioms.py::test_mutants_are_not_proved": 0,
    "verifier/test_axioms.py::test_what_is_false_is_not_proved": 3,
    "verifier/test_axioms.py::test_what_is_given_of_a_rule_is_consistent": 2,
    "verifier/test_not_proved.py::test_it_is_not_proved": 25,
    "verifier/test_prove.py::test_a_refutation_is_an_instance_of_the_rule": 4,
    "verifier/test_prove.py::test_false_rules_are_refuted": 6,
    "verifier/test_prove.py::test_no_wrong_mutant_is_proved": 3,
    "verifier/test_prove.py::test_true_rules_are_proved": 6,
    "verifier/test_same.py::test_proofs_do_not_hang_on_those_before": 0,
    "verifier/test_second_solver.py::test_answers_of_both_are_confirmed": 0,
    "pipeline/test_near_valid.py::test_every_command_takes_what_onnxruntime_runs": 10,
    "pipeline/test_opaque_places.py::test_equal_graphs_around_an_opaque_operator": 6,
    "plan/test_recurrent_loops.py::test_options": 6,
    "onnx_io/test_mutants.py::test_what_can_never_be_valid": 4,
    "pipeline/test_comparison.py::test_what_optimize_writes_is_not_refuted": 3,
    "ops/test_exceptional.py::test_compiled": 3,
    "ops/test_exceptional.py::test_compiled_with_each_operator_rounded": 4,
    "plan/test_interpolation.py::test_resize": 4,
    "plan/test_interpolation.py::test_resize_compiled": 4,
    "plan/test_recurrent_loops.py::test_threads": 6,
    "plan/test_recurrent_loops.py::test_activations": 4,
    "plan/test_recurrent_loops.py::test_many_steps": 4,
    "cost/test_clock.py::test_another_measurement_lies_in_the_interval": 2,
    "partial/test_moves.py::test_corrected_mutants_are_the_program": 3,
    "kernels/test_vector_math.py::test_results_near_the_smallest_normal_number": 8,
    "plan/test_decisions.py::test_on_processors": 6,
    "pipeline/test_ml.py::test_dense_operators_run_as_kernels": 5,
    "plan/test_scatters.py::test_scatters": 6,
    "test_bench_kernels.py::test_small_ones_have_kernels": 5,
    "guards/test_commands.py::test_a_command_ends_within_its_limits": 2,
    "pipeline/test_trees.py::test_aggregates": 4,
    "partial/test_moves.py::test_a_model_s_own": 0,
    "generate/test_run.py::test_rules_hold_on_shapes_that_did_not_make_them": 0,
    "pipeline/test_opaque_places.py::test_every_command_takes_random_models": 0,
    "test_api.py::test_optimize_takes_a_model_in_every_form": 5,
    "test_backend.py::test_node": 40,
    "test_drawing.py::test_every_rule_in_svg": 8,
    "test_drawing.py::test_every_rule_in_text": 17,
    "test_packaging.py::test_the_wheel_holds_the_tree": 0,
    "test_weightless.py::test_the_demo_models": 2,
    "test_without_z3.py::test_commands_run_without_it": 2,
}


# Crossed tables of a GPU's kernels in Triton's interpreter, and how many values their last
# parameter has, mostly precisions. Of each combination of the others one case stays, with those
# values in turn.
ROUND_ROBIN: Mapping[str, int] = {
    "kernels/test_gpu_interpreter.py::test_reductions": 4,
    "kernels/test_triton.py::test_a_masked_add": 4,
    "plan/test_cuda.py::test_numbers_that_do_not_fit": 2,
    "plan/test_cuda.py::test_the_same": 2,
    "plan/test_cuda.py::test_the_vendors_library": 4,
    "plan/test_cuda_across.py::test_the_same": 3,
    "plan/test_cuda_blocks.py::test_blocks_of_three": 3,
    "plan/test_cuda_counted.py::test_they_are_exact": 4,
    "plan/test_cuda_covered.py::test_the_same": 4,
    "plan/test_cuda_divided.py::test_the_same": 3,
    "plan/test_cuda_flash.py::test_torch_computes_the_same": 2,
    "plan/test_cuda_gates.py::test_a_cell": 2,
    "plan/test_cuda_masked.py::test_rows_that_see_nothing": 4,
    "plan/test_cuda_onnx_attention.py::test_scores_are_not_in_memory": 2,
    "plan/test_cuda_pictures.py::test_the_same": 2,
    "plan/test_cuda_powers.py::test_whole_powers": 2,
    "plan/test_cuda_streams.py::test_on_several_streams": 3,
    "plan/test_cuda_vendor.py::test_the_library_computes_the_same": 4,
}


def function_of(nodeid: str) -> str:
    """`kernels/test_pool.py::test_sums` of `tests/kernels/test_pool.py::test_sums[3-f32]`."""
    return nodeid.removeprefix("tests/").partition("[")[0]


def runs_by_default(number: int, one_in: int) -> bool:
    """True of about one in so many numbers from 0 on, of 0 itself, and of none with 0.

    The multiples of the golden ratio are spread evenly, and in step with no other count: of crossed
    tables all rows and columns are among those that run.
    """
    return one_in > 0 and number * GOLDEN_RATIO % 1 * one_in < 1


def is_in_turn(number: int, values: int) -> bool:
    """True of one number in each `values` in a row: the 0th of the first, the 1st of the next."""
    return number % values == number // values % values


def mark_breadth(items: Iterable[pytest.Item]) -> None:
    """Give the marker to the cases of ONE_IN and ROUND_ROBIN that do not run by default.

    Slow ones do not count, and have a marker of their own.
    """
    before = Counter[str]()
    for item in items:
        if item.get_closest_marker("slow") is not None:
            continue
        name = function_of(item.nodeid)
        number = before[name]
        if not (
            runs_by_default(number, ONE_IN.get(name, 1))
            and is_in_turn(number, ROUND_ROBIN.get(name, 1))
        ):
            item.add_marker(pytest.mark.breadth)
        before[name] += 1
    for name, values in ROUND_ROBIN.items():
        assert before[name] == 0 or before[name] >= values**2, f"a value never has its turn: {name}"


def select_shard(items: Iterable[pytest.Item], shard: int, shards: int) -> list[pytest.Item]:
    """The items without the marker, and of those with it every `shards`-th, from `shard` on.

    Over shards 0 to `shards` - 1 each item with the marker is selected once."""
    wide = count()
    return [
        item
        for item in items
        if item.get_closest_marker("breadth") is None or next(wide) % shards == shard
    ]
