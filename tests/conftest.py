"""What is compiled is kept for the session, for all its processes: many tests run a program again, or resume it.

It is compiled without optimisation: most of the time of the tests is the compiler's. A tenth of the time of tracing is
the garbage collector's, which therefore comes seldom.
"""

import gc
import os
import runpy
import subprocess
import sys
import tempfile
import warnings
from importlib.metadata import version

import pytest

if "JAX_COMPILATION_CACHE_DIR" not in os.environ:  # before JAX is imported; the workers of pytest-xdist inherit it
    _folder = tempfile.TemporaryDirectory(prefix="frodo_tests_", ignore_cleanup_errors=True)
    os.environ["JAX_COMPILATION_CACHE_DIR"] = _folder.name
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.5")
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true "
    "--xla_cpu_parallel_codegen_split_count=1"
    + " --xla_cpu_use_fusion_emitters=false"
    * (tuple(map(int, version("jaxlib").split(".")[:2])) < (0, 11)),  # unknown to later ones
)
os.environ.setdefault("JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "0")
gc.set_threshold(200_000, 50, 100)
MAX_BYTES = 1.2e9  # of a process of the tests, between two files


def pytest_runtest_teardown(item, nextitem):
    """Between files, forget what was compiled where that, and what was traced, has grown large."""
    if nextitem is not None and nextitem.path != item.path and "jax" in sys.modules:
        with open("/proc/self/statm") if os.path.exists("/proc/self/statm") else open(os.devnull) as file:
            pages = file.read().split()
        if pages and int(pages[1]) * os.sysconf("SC_PAGE_SIZE") > MAX_BYTES:
            sys.modules["jax"].clear_caches()
            gc.collect()


@pytest.fixture
def float64():
    """Compute in float64 where nothing else is said."""
    import jax

    with jax.enable_x64(True):
        yield


@pytest.fixture
def start(monkeypatch, capsys):
    """Return a function that runs a program by its module's name, or as code, and says what came of it."""
    from absl import flags

    from experiments.runs import command_line
    from frodo.runs import errors

    def start(program, *args):
        before = set(flags.FLAGS)
        monkeypatch.setattr(sys, "argv", [program.split("\n")[0], *map(str, args)])
        for name in ("use_all_cores", "keep_freed_memory"):
            monkeypatch.setattr(command_line.cores, name, lambda: None)
        monkeypatch.setattr(command_line.app, "run", lambda main, flags_parser: main(flags_parser(sys.argv)))
        monkeypatch.setattr(errors, "run_is_open", False)
        capsys.readouterr()
        code = 0
        try:
            if "\n" in program:
                exec(program, {"__name__": "__main__"})
            else:
                with warnings.catch_warnings(action="ignore", category=RuntimeWarning):  # it may be imported already
                    runpy.run_module(program, run_name="__main__")
        except SystemExit as end:
            code = end.code
        finally:
            for name in set(flags.FLAGS) - before:
                delattr(flags.FLAGS, name)
            flags.FLAGS.unparse_flags()
        return subprocess.CompletedProcess(args, code, *capsys.readouterr())

    return start


# Files whose tests are marked as slow: they compile large programs, or start processes.
SLOW = (
    "agents/acting/test_in_jax.py",
    "agents/networks/test_agent.py",
    "agents/networks/test_transformer.py",
    "examples/",
    "experiments/",
    "frodo/regimes/test_learner.py",
    "frodo/test_online.py",
    "frodo/regimes/test_plan.py",
    "frodo/test_population.py",
    "frodo/rules/test_files.py",
    "frodo/test_split.py",
    "frodo/settings/test_earlier_versions.py",
    "meta/targets/test_disco.py",
    "meta/updates/test_experience.py",
    "meta/updates/test_gradients.py",
    "meta/updates/test_lifetime.py",
    "meta/updates/test_population.py",
    "meta/targets/test_scalar.py",
    "strangers/test_not_finite.py",
    "strangers/test_value_bins.py",
    "test_library.py",
    "test_notebook.py",
    "test_numbers.py",
    "test_readme.py",
    "test_unchanged.py",
)


# Tests that take long for what they add to others; run by name, or with -m long.
LONG = (
    "examples/test_frodo_in_one_file.py::test_the_page_prints_the_return",
    "experiments/runs/test_training.py::test_a_life_with_one_of_several_learning_rates_is_that_with_it_alone",
    "experiments/runs/test_training.py::test_ten_bad_meta_gradients",
    "experiments/runs/test_training.py::test_an_agent_whose_parameters_are_not_finite",
    "experiments/runs/test_training.py::test_a_resumed_toy_run_is_bit_for_bit_one_that_never_stopped[small_catch",
    "meta/updates/test_gradients.py::test_agrees_with_central_differences[consistency-multi-step",
    "meta/updates/test_gradients.py::test_agrees_with_central_differences[actor_critic-semi",
    "meta/updates/test_gradients.py::test_agrees_with_central_differences[actor_critic-relative",
    "meta/updates/test_gradients.py::test_agrees_with_central_differences[actor_critic-mean",
    "meta/updates/test_gradients.py::test_agrees_with_central_differences[actor_critic-stopped",
    "meta/updates/test_experience.py::test_a_kept_validation_trajectory_is_the_next_updates_first_and_on_policy[False-",
    "meta/updates/test_experience.py::test_a_kept_validation_trajectory_is_the_next_updates_first_and_on_policy[True-1-0",
    "meta/updates/test_curriculum.py::test_each_trajectory_is_an_episode_and_only_chosen_ones_are_learned_from[no_op",
    "test_readme.py::test_a_command_of_the_readme_runs[.venv/bin/python -m experiments.catch",
    "frodo/test_population.py::test_agents_on_the_host_with_as_many_actions_share_what_is_compiled",
    "frodo/test_population.py::test_one_optimiser_for_all_moves_by_its_learning_rate",
    "experiments/test_evolve.py::test_a_search_that_has_found_all_there_is_ends_with_its_finalists",
    "experiments/test_evolve.py::test_a_target_is_found_and_is_a_rule_that_others_read",
    "experiments/test_evolve.py::test_agents_are_trained_by_what_was_found",
    "experiments/comparison/test_cells.py::test_seeds_and_learning_rates_share_their_programs",
    "agents/environments/test_navix.py::test_steps_are_navixs_own[Navix-DoorKey-5x5-v0]",
    "meta/updates/test_lifetime.py::test_loss_without_meta_moves_the_parameters_and_carries_no_meta_gradient[reverse",
    "experiments/test_score.py::test_a_program_prints_and_keeps_the_scores_of_a_search",
    "meta/updates/test_distillation.py::test_the_loss_is_that_of_the_paper[3-muesli",
    "frodo/test_online.py::test_on_the_host_the_slow_copy_acts_as_well",
    "strangers/test_saved_results.py::test_going_on_after_loading_is_never_having_stopped[memory",
    "experiments/test_analyse.py::test_the_program_draws[without0",
    "experiments/test_analyse.py::test_the_program_draws[without2",
    "frodo/test_evolution.py::test_finalists_are_scored_by_the_lanes_of_the_search",
    "experiments/test_sensitivity.py::test_the_learned_target_agrees_with_its_gradient",
    "experiments/test_watch.py::test_the_curves_are_what_the_agent_predicts",
    "experiments/test_adapt.py::test_a_discovered_rule_trains_without_memory_and_a_bandit_has_a_regret",
    "experiments/analyses/test_predictions.py::test_the_horizon_is_a_mean_over_pairs_of_one_episode",
    "experiments/analyses/test_predictions.py::test_confidence_is_from_zero_to_one",
    "meta/targets/test_policy_fitting.py::test_what_is_made_up_is_what_the_rule_takes[5",
    "frodo/test_split.py::test_a_library_call_on_one_device_of_a_mesh_is_the_call_without",
    "meta/targets/test_disco.py::test_hidden_predictions_reach_no_target_that_they_are_hidden_from[nothing-True-True",
    "agents/environments/test_gymnax.py::test_steps_are_gymnaxs_own[Freeway-MinAtar]",
    "agents/environments/test_navix.py::test_jit_and_vmap",
    "agents/environments/test_navix.py::test_steps_are_navixs_own[Navix-KeyCorridorS3R1-v0]",
    "examples/test_frodo_in_one_file.py::test_the_page_learns_what_the_package_learns[small]",
    "examples/test_own_rule.py::test_a_population_discovers_it",
    "experiments/analyses/test_attention.py::test_each_step_reads_itself_and_those_of_its_episode_within_reach[5]",
    "experiments/runs/test_loaded_agent.py::test_a_trained_agent_acts_and_is_looked_at[bsuite/catch/0]",
    "experiments/runs/test_loaded_agent.py::test_seeds_differ",
    "experiments/comparison/test_cells.py::test_a_method_tries_the_grid",
    "experiments/runs/test_training.py::test_a_host_run_goes_through_its_seeds_and_goes_on_in_the_second[frodo]",
    "experiments/runs/test_training.py::test_a_life_whose_parameters_are_not_finite_says_so",
    "experiments/test_discover.py::test_resuming_is_as_never_stopped",
    "experiments/test_evolve.py::test_a_search_that_is_stopped",
    "experiments/test_fit.py::test_what_is_explained_on_made_up_trajectories_and_on_an_agents_own[vtrace-True]",
    "frodo/test_evolution.py::test_a_search_for_targets_goes_on_from_its_state",
    "frodo/test_evolution.py::test_targets_are_searched_for_too",
    "frodo/rules/test_fitted.py::test_a_damaged_entry_is_made_anew",
    "frodo/rules/test_fitted.py::test_the_names_of_targets_are_names_of_rules",
    "frodo/regimes/test_learner.py::test_updates_leave_the_validation_trajectory_that_is_kept",
    "frodo/test_online.py::test_experience_on_the_host_changes_in_place_and_that_of_an_earlier_result_stays[more1]",
    "frodo/test_online.py::test_going_on_is_never_having_stopped_and_seeds_do_not_mix",
    "frodo/test_online.py::test_muesli_acts_by_its_slow_copy_and_learns",
    "frodo/test_online.py::test_the_meta_gradient_of_a_student_is_the_same_in_both_modes",
    "frodo/test_population.py::test_on_the_host_a_new_agent_learns_from_what_it_acted_itself",
    "meta/targets/test_disco.py::test_predictions_hidden_as_their_mean_say_no_more_than_it",
    "meta/targets/test_disco.py::test_what_a_rule_is_without_is_neither_predicted_nor_learned_nor_seen[without2",
    "meta/updates/test_distillation.py::test_the_loss_is_that_of_the_paper[0-muesli]",
    "meta/updates/test_experience.py::test_a_kept_validation_trajectory_is_the_next_updates_first_and_on_policy[True-2-0]",
    "meta/targets/test_fitting.py::test_a_fit_explains_most_and_less_where_it_was_not_fitted[True]",
    "meta/updates/test_gradients.py::test_agrees_with_central_differences[actor_critic-on_",
    "meta/updates/test_gradients.py::test_agrees_with_central_differences[actor_critic-torso",
    "meta/updates/test_gradients.py::test_agrees_with_central_differences[learned_loss-",
    "meta/updates/test_gradients.py::test_agrees_with_central_differences[value_based-relative",
    "meta/programs/test_lanes.py::test_a_lane_is_told_of_ends_by_gamma_or_by_values",
    "meta/updates/test_passes.py::test_updates_are_on_minibatches_by_targets_made_once[5]",
    "meta/targets/test_policy_fitting.py::test_cmpo_is_that_of_loops",
    "meta/updates/test_population.py::test_a_population_of_disco_learns_from_finite_gradients",
    "meta/updates/test_population.py::test_an_agent_that_waits_for_its_replay_has_no_part_in_eta",
    "meta/updates/test_population.py::test_side_by_side_is_one_after_another",
    "meta/programs/test_language.py::test_no_random_program_has_a_loss_or_a_gradient_that_is_not_finite[0.0]",
    "strangers/test_pictures.py::test_a_population_that_sees_pictures_alone_has_the_torso_for_pictures[others1",
    "strangers/test_random_keys.py::test_an_online_lifetime[frodo",
    "test_library.py::test_a_population_goes_on_from_its_state_and_finds_the_same",
    "test_readme.py::test_a_command_of_the_readme_runs[.venv/bin/python -m experiments.random_walk",
    "test_readme.py::test_a_command_of_the_readme_runs[make run ENV=atari/Pong",
    "test_readme.py::test_the_example_of_adaptation_runs",
    "test_unchanged.py::test_a_run_gives_what_it_gave[trials]",
)


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(config, items):
    for item in items:
        if item.nodeid.removeprefix("tests/").startswith(LONG):
            item.add_marker(pytest.mark.long)
        if item.path.relative_to(config.rootpath / "tests").as_posix().startswith(SLOW):
            item.add_marker(pytest.mark.slow)
