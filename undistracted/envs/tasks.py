"""The names of the tasks, known without importing a simulator."""

from undistracted.errors import UserError, did_you_mean

SUITE = {
    "acrobot": "swingup swingup_sparse",
    "ball_in_cup": "catch",
    "cartpole": "balance balance_sparse swingup swingup_sparse three_poles two_poles",
    "cheetah": "run",
    "dog": "fetch run stand trot walk",
    "finger": "spin turn_easy turn_hard",
    "fish": "swim upright",
    "hopper": "hop stand",
    "humanoid": "run run_pure_state stand walk",
    "humanoid_CMU": "run stand walk",
    "lqr": "lqr_2_1 lqr_6_2",
    "manipulator": "bring_ball bring_peg insert_ball insert_peg",
    "pendulum": "swingup",
    "point_mass": "easy hard",
    "quadruped": "escape fetch run walk",
    "reacher": "easy hard",
    "stacker": "stack_2 stack_4",
    "swimmer": "swimmer15 swimmer6",
    "walker": "run stand walk",
}
SUITE_FAMILIES = ("dmc", "distracted", "scoreboard")
GYM_PATTERN = "gym/<EnvId>"


def task_names() -> list[str]:
    """Every task by name; the last entry is the pattern that stands for any Gymnasium environment."""
    suite = [f"{domain}-{task}" for domain, tasks in SUITE.items() for task in tasks.split()]
    return [f"{family}/{name}" for family in SUITE_FAMILIES for name in suite] + [GYM_PATTERN]


def split_task(task: str) -> tuple[str, str, str]:
    """`distracted/walker-walk` -> (`distracted`, `walker`, `walk`); a Gymnasium id has no domain."""
    family, _, name = task.partition("/")
    if family == "gym":
        return family, "", name
    domain, _, name = name.partition("-")
    return family, domain, name


def domain(task: str) -> str:
    """The part of a task's name that chooses hyper-parameters, such as `walker`; empty for `gym/...`."""
    return split_task(task)[1]


def check_task(task: str) -> None:
    """Raise for a task that does not exist, with the nearest name that does; nothing is built."""
    family, _, name = split_task(task)
    if family == "gym":
        from undistracted.envs.gym import find_spec

        find_spec(name)
    elif task not in task_names()[:-1]:
        raise UserError(
            f"unknown task '{task}'{did_you_mean(task, task_names())} (`undistracted tasks` lists them all)"
        )
