/* The types of compiled plans and of the counters of their channels. */
#ifndef HPCCOLL_COMPILED_PLAN_H
#define HPCCOLL_COMPILED_PLAN_H

#include "_plan.h"

extern PyTypeObject CompiledPlanType, CountersType;

CompiledPlan *copy_plan(const CompiledPlan *plan);
PyObject *has_loop(PyObject *module, PyObject *args);

#endif
